"""Responses that are sent in pieces, so that a client that reads slowly holds little memory."""

from collections.abc import AsyncGenerator, Mapping

from starlette.responses import StreamingResponse

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
