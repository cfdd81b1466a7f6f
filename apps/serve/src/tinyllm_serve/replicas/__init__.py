"""Replicas of a server on Ray Serve. Only this package imports Ray."""
