"""The policy that chooses the tokens of each step, without tensors."""
