"""Compilation of kernels into programs, with a cache of the results."""
