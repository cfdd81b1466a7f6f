"""GET /docs: a page that describes the API, and its files, which need no network."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import Response, StreamingResponse
from starlette.requests import Request

from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.http.json_text import json_bytes

DOCUMENT = "/openapi.json"
FOLDER = "/static-offline-docs"
TYPES = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon.png": "image/png",
}
HEADERS = {"Cache-Control": "max-age=3600"}
"""The files change with the package that has them. The script has 1.5 MB."""

PIECE = 1 << 14
"""Bytes of a piece. A connection buffers at most 65,536 bytes and one piece more."""


class PiecesResponse(StreamingResponse):
    """A response whose content is in memory once for all clients, and sent in pieces.

    A transport copies what the client has not read.
    """

    def __init__(self, content: bytes, media_type: str, headers: Mapping[str, str]) -> None:
        """Prepare to send."""
        length = {"Content-Length": str(len(content))}
        super().__init__(_pieces(content), headers={**headers, **length}, media_type=media_type)


async def _pieces(content: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(content), PIECE):
        yield content[start : start + PIECE]


class ApiDocument:
    """The OpenAPI document of an application, which the first request for it builds."""

    def __init__(self, app: FastAPI) -> None:
        """Build nothing yet."""
        self._app = app
        self._lock = asyncio.Lock()
        self._content: bytes | None = None

    async def content(self) -> bytes:
        """Return the document as JSON, built in a thread, because that takes 0.5 s."""
        async with self._lock:
            if self._content is None:
                self._content = await asyncio.to_thread(self._build)
            return self._content

    def _build(self) -> bytes:
        return json_bytes(self._app.openapi())


router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """Return the page."""
    return get_swagger_ui_html(
        openapi_url=DOCUMENT,
        title=f"{request.app.title} - Swagger UI",
        swagger_js_url=f"{FOLDER}/swagger-ui-bundle.js",
        swagger_css_url=f"{FOLDER}/swagger-ui.css",
        swagger_favicon_url=f"{FOLDER}/favicon.png",
    )


@router.get(DOCUMENT)
async def document(request: Request) -> Response:
    """Return the OpenAPI document."""
    api_document: ApiDocument = request.app.state.api_document
    return PiecesResponse(await api_document.content(), "application/json", {})


@router.get(f"{FOLDER}/{{name}}")
async def file(name: str) -> Response:
    """Return a file of the page."""
    if name not in TYPES:
        raise ApiError(404, f"the page has no file {name[:200]!r}")
    return PiecesResponse(_content(name), TYPES[name], HEADERS)


@cache
def _content(name: str) -> bytes:
    """Read a file once, so that a response holds no file open while the client reads it."""
    return (files("fastapi_offline") / "static" / name).read_bytes()
