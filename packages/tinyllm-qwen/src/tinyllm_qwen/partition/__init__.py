"""The division of a model between several processes: the part of each, and their communicators."""
