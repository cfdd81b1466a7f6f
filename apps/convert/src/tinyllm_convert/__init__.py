"""Convert a Hugging Face checkpoint to an MLX one: `convert SOURCE TARGET --bits 4`."""
