"""Names for the beginnings of a request: equal names, equal beginnings."""

import json
from hashlib import blake2b

NAME_BYTES = 16
MOST = 1024
"""Names of a request at most: what comes after them makes no difference to its replica."""

# In the order in which chat templates put them: what comes first must be named first.
_FIELDS = ("tools", "instructions", "messages", "input", "prompt")


def request_beginnings(body: bytes, stride: int) -> tuple[bytes, ...]:
    """The names of the request's first `stride` characters, of its first 2 * `stride`, and so on.

    The characters are those of the JSON of what becomes the prompt. They stand for its tokens,
    which only a replica knows: conversations that begin with the same text have the same first
    pages. As with the keys of pages, a name is a hash of a piece and of the name before it.

    Args:
        body: as the client sent it.
        stride: characters from one name to the next.

    Returns:
        No names if the body is no JSON object, or shorter than a stride.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return ()  # the replica that it comes to says what is wrong with it
    if not isinstance(asked, dict):
        return ()
    parts = [asked[name] for name in _FIELDS if asked.get(name) is not None]
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    names: list[bytes] = []
    before = b""
    for start in range(0, min(len(text), MOST * stride) - stride + 1, stride):
        piece = text[start : start + stride].encode(errors="surrogatepass")
        before = blake2b(before + piece, digest_size=NAME_BYTES).digest()
        names.append(before)
    return tuple(names)
