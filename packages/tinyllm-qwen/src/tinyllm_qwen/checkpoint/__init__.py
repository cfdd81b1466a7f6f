"""Checkpoints: find or download the files, check them, and read weights by name."""
