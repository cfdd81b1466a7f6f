"""Targets of requests: a path, or a whole URL, as a client sends it to a proxy."""

import re

import h11

_URL = re.compile(rb"(?i:https?)://((?:\[[0-9A-Fa-f:.]+\]|[^][/?#@:]+)(?::[0-9]*)?)([/?][^#]*)?")
"""A URL without user and fragment: its authority, and its path and query."""


def with_origin_form(request: h11.Request) -> h11.Request:
    """Replace a URL as the target by its path and query, and the Host header by its authority.

    A server must accept URLs, and ignore the Host header beside them (RFC 9112, section 3.2.2).

    Raises:
        RemoteProtocolError: if the target is neither a path nor a URL of HTTP.
    """
    if request.target.startswith(b"/") or request.target == b"*":
        return request
    url = _URL.fullmatch(request.target)
    if url is None:
        raise h11.RemoteProtocolError("the target is neither a path nor a URL of HTTP")
    authority, rest = url[1], url[2] or b""
    headers = [header for header in request.headers if header[0] != b"host"]
    return h11.Request(
        method=request.method,
        target=rest if rest.startswith(b"/") else b"/" + rest,
        headers=[(b"host", authority), *headers],
        http_version=request.http_version,
    )
