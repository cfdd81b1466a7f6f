"""The bodies of requests and responses, one module for each kind of object."""
