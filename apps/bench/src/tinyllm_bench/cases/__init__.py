"""Cases: the operations, layers and whole models that are timed."""
