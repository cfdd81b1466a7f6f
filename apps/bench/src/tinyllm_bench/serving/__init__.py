"""Measurements of many requests at once: in the engine and against servers."""
