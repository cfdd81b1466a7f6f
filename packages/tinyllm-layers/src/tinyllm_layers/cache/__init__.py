"""Caches: keys and values of earlier tokens in several layouts, and states of recurrent layers."""
