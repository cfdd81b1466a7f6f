"""Quantize a checkpoint, one tensor at a time."""
