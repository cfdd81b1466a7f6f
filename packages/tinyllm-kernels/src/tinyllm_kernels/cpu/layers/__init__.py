"""The native stack: decoder layers in the extension, several in one primitive of MLX."""
