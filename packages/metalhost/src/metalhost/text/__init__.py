"""Text of a kernel as MLX passes it to Metal: element types, arguments, generated signature."""
