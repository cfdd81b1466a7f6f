"""The command `tinyllm`."""
