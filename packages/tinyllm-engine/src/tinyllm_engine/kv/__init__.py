"""Allocation, sharing and persistence of pages of keys and values."""
