"""Other programs that run the same model, where they are installed."""
