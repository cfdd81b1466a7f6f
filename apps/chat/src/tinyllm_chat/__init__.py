"""Chat with a Qwen model in the terminal: `chat`, and `chat --prompt "..."`."""
