"""Sampling: the choice of the next token from the logits."""
