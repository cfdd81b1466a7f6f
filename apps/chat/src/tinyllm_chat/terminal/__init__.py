"""Terminal input and output."""
