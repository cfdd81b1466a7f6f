"""Names for full pages: equal names, equal keys and values."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

ROOT = b""
"""The key before the first page."""

KEY_BYTES = 16
"""The length of a key."""


def page_keys(tokens: Sequence[int], page_size: int, known: Sequence[bytes] = ()) -> list[bytes]:
    """The keys of all full pages of a text.

    A key is a hash of the page's tokens and of the key before it, so that it stands for the whole
    text up to the page's end. It is a cryptographic hash because nothing compares the tokens: two
    texts with one key would read each other's conversation.

    Args:
        tokens: the text.
        page_size: tokens a page.
        known: keys of the first pages, computed earlier.
    """
    keys = list(known)
    for start in range(len(keys) * page_size, len(tokens) - page_size + 1, page_size):
        page = array("I", tokens[start : start + page_size])
        before = keys[-1] if keys else ROOT
        keys.append(blake2b(before + page.tobytes(), digest_size=KEY_BYTES).digest())
    return keys
