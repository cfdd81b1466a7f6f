"""Other programs that run the same model, each in a child process."""
