"""Tensors of a few bits per number, in the formats that MLX stores."""
