"""Conversion of messages to token ids, and of token ids to text."""
