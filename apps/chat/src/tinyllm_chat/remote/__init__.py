"""Answers from a server that implements OpenAI's chat completions API."""
