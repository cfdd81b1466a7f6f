"""Benchmarks of tinyllm: operations, whole models, the engine and the server."""
