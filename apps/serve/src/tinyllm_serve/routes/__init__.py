"""The endpoints, one module each."""
