"""Answers from a model that this process loads, alone or with other ranks."""
