"""Choose the tokens of each step. No tensors."""
