"""Propose draft tokens, which the model verifies."""
