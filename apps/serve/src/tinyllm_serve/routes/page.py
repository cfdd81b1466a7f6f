"""GET /: a page to talk to the model in a browser."""

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from tinyllm_serve.api_error import ApiError

TYPES = {
    "index.html": "text/html; charset=utf-8",
    "chat.css": "text/css; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "events.js": "text/javascript; charset=utf-8",
}
# The page needs its own files and this server: nothing that a model says can load anything else.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_router() -> APIRouter:
    """The page and its files."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def index() -> Response:
        return _file("index.html")

    @router.get("/page/{name}")
    async def file(name: str) -> Response:
        if name not in TYPES:
            raise ApiError(404, "the page has no such file")
        return _file(name)

    return router


def _file(name: str) -> Response:
    text = (files("tinyllm_serve") / "page" / name).read_bytes()
    return Response(text, media_type=TYPES[name], headers=HEADERS)
