"""What each operation of a Qwen model costs, and the whole model: `bench`."""
