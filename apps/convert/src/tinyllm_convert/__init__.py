"""Convert a Hugging Face checkpoint to an MLX checkpoint: `convert SOURCE TARGET --bits 4`."""
