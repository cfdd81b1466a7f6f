"""OpenAI-compatible server for Qwen models: the command `serve`."""
