"""Bytes, for people."""


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"
