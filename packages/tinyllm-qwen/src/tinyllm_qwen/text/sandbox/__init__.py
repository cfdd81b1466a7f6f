"""Render chat templates of strangers within limits of time and memory."""
