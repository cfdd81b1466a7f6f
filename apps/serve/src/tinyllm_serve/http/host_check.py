"""ASGI middleware that refuses requests to other names than those of the server."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.http.loopback import is_loopback
from tinyllm_serve.http.request_log import refuse


class HostCheck:
    """Refuse requests whose Host header is not a name of this server.

    A web page may give its own name the address 127.0.0.1 (DNS rebinding). The browser then
    treats a server on this machine as the page's own: the page can send requests to the server and
    read the responses. Such requests still have the page's name in their Host header.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        """Wrap an application.

        Args:
            app: the application.
            names: allowed host names. Loopback names, such as localhost, are always allowed.
        """
        self._app = app
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        host = Headers(scope=scope).get("host")
        # A request without Host is HTTP/1.0, which no browser speaks.
        if host is None or self._allowed(host):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            403,
            f"Host: expected a name of this server, got {host[:200]!r}: start the server with "
            "--allowed-host NAME to allow another name",
            code="host_not_allowed",
        )
        await refuse(error, scope, receive, send)

    def _allowed(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and (name in self._names or is_loopback(name))
