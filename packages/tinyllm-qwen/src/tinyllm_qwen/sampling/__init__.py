"""Sampling, which chooses the next token from the logits."""
