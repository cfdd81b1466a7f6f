"""An OpenAI-compatible server for Qwen models: `serve`."""
