"""Host names of the machine itself."""

from ipaddress import ip_address


def is_loopback(name: str) -> bool:
    """Return True if a host name always means the machine itself.

    That is a loopback address, or localhost (RFC 6761).
    """
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.rstrip(".").lower() == "localhost"
