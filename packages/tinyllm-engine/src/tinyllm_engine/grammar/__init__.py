"""Grammars, which constrain the tokens of a request."""
