"""API keys, which clients send in a header."""


def is_valid_key(key: str) -> bool:
    """Return True if clients can send a key in a header: ASCII without spaces and controls."""
    return bool(key) and key.isascii() and key.isprintable() and " " not in key
