"""Speculative decoding: drafters propose draft tokens, which the model verifies."""
