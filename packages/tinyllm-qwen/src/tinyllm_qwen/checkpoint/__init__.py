"""Files of a checkpoint, from the Hugging Face Hub or a folder, to weights by name."""
