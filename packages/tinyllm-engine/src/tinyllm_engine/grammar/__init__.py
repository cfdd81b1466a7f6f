"""Constrain the tokens of a request to a grammar."""
