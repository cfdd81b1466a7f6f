"""Detokenize a stream of token ids without ever showing half a character."""

import codecs
from collections.abc import Callable


class IncrementalDetokenizer:
    """Turns tokens into text as they come.

    A byte-level token is a run of bytes, and a character may spread over several tokens: bytes
    are held back until they complete a character or can no longer do so. All pieces together,
    the one from `finish` included, are what decoding all tokens at once gives; each byte is
    looked at once.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """Start a text of tokens whose bytes `token_bytes` gives (none for one not to be shown)."""
        self._token_bytes = token_bytes
        # As `tokenizers` does, one U+FFFD stands for each maximal subpart of a broken sequence
        # (the Unicode Standard, section 3.9, "U+FFFD substitution of maximal subparts").
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that `token` makes certain; empty while a character is incomplete."""
        return self._decoder.decode(self._token_bytes(token))

    def finish(self) -> str:
        """End the text: an incomplete character becomes U+FFFD, and the next push starts anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
