"""Render untrusted chat templates within limits of time and memory."""
