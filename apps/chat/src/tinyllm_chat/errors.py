"""The error of a request that cannot be fulfilled."""


class ChatError(ValueError):
    """A request cannot be fulfilled. The exit code is 1."""
