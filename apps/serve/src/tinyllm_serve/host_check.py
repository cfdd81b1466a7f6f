"""By which names a server may be asked for."""

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tinyllm_serve.api_error import ApiError


class HostCheck:
    """Middleware: lets those pass whose Host header is a name of this server.

    A web page may give its own name the address 127.0.0.1 while somebody reads it (DNS rebinding),
    and the browser then takes a server on this machine for the page's own, which the page may ask
    and read. Its requests still name the page's host.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        """Wrap an application.

        Args:
            app: what to wrap.
            names: hosts, beside those that always mean the machine itself.
        """
        self._app = app
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host")
            # Without one it is HTTP/1.0, which no browser speaks.
            if host is not None and not self._allowed(host):
                error = ApiError(
                    403,
                    f"the Host header names {host[:200]!r}, which this server does not go by: "
                    "start it with --allowed-host NAME if it should",
                    code="host_not_allowed",
                )
                await error.response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _allowed(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and (name in self._names or is_loopback(name))


def is_loopback(name: str) -> bool:
    """Whether a host is this machine, whoever asks: a loopback address, or localhost (RFC 6761)."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.rstrip(".").lower() == "localhost"
