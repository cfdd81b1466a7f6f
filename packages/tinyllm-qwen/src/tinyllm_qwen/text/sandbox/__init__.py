"""A sandbox that renders untrusted chat templates within limits of time and memory."""
