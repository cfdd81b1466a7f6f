"""GET /: a chat page for browsers, and its files under /page."""

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from tinyllm_serve.http.errors import ApiError

TYPES = {
    "index.html": "text/html; charset=utf-8",
    "chat.css": "text/css; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "events.js": "text/javascript; charset=utf-8",
}
# The page may load only its own files, and send requests only to this server, so that text of a
# model cannot load anything else.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


router = APIRouter(include_in_schema=False)


@router.get("/")
async def index() -> Response:
    """Return the page."""
    return _file("index.html")


@router.get("/page/{name}")
async def file(name: str) -> Response:
    """Return a file of the page."""
    if name not in TYPES:
        raise ApiError(404, f"the page has no file {name[:200]!r}")
    return _file(name)


def _file(name: str) -> Response:
    text = (files("tinyllm_serve") / "page" / name).read_bytes()
    return Response(text, media_type=TYPES[name], headers=HEADERS)
