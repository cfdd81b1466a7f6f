"""The command `tinyllm models`: models of the Hugging Face cache."""
