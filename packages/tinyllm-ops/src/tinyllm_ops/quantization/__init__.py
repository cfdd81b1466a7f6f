"""Tensors of a few bits per number, in the formats of `mx.quantize`."""
