"""Sizes in messages and reports."""


def format_bytes(nbytes: int) -> str:
    """Return a number of bytes in GB, MB or kB, with one decimal."""
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes / 1000:.1f} kB"
