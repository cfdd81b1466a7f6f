"""The encoding of text as token ids, in bounded memory and without holding Python's lock."""

from functools import cached_property

import tokenizers

from tinyllm_qwen.errors import CheckpointError, TextTooLongError
from tinyllm_qwen.text.pieces import PIECE_LENGTH, can_be_cut, cut
from tinyllm_qwen.text.tokenizer_files import has_panicked

MAX_WORD = 500_000
"""The most characters without the end of a word, in texts with a limit of tokens. They take about
70 MB while they are encoded."""


class TextEncoder:
    """An encoder of texts of any length.

    The library holds a few hundred bytes per token until a text is encoded. A long text is
    therefore encoded in pieces, if the pattern that splits texts into words is known.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Make an encoder with a tokenizer of the library, which must not change afterwards."""
        self._backend = backend

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = False,
        max_tokens: int | None = None,
        earlier: int = 0,
    ) -> list[int]:
        """Return the token ids of a text; see `Tokenizer.encode`.

        `earlier` is the number of tokens before this text, which count for `max_tokens` too.

        Raises:
            TextTooLongError: if the text has more than `max_tokens` tokens.
            CheckpointError: if the pattern that splits texts into words fails on this text, or
                tokenizer.json does more than to put special tokens around a text.
        """
        if add_special_tokens:
            before, after = self._special_tokens
            earlier += len(before) + len(after)
            return [*before, *self.encode(text, max_tokens=max_tokens, earlier=earlier), *after]
        text = well_formed(text)
        if max_tokens is not None:
            self._check_length(text, max_tokens, earlier)
        if len(text) <= PIECE_LENGTH or not self._can_be_cut:
            ids = self._encode(text)
            check_count(earlier + len(ids), max_tokens)
            return ids
        ids = []
        longest = None if max_tokens is None else MAX_WORD + PIECE_LENGTH
        for piece in cut(text, self._added_tokens, PIECE_LENGTH, longest):
            if len(piece) == longest:
                raise TextTooLongError(
                    f"expected the end of a word within {MAX_WORD} characters, got none: insert "
                    "spaces or line breaks"
                )
            # The ids of the table are shared. New integers would take 32 bytes each.
            ids += map(self._shared_ids.__getitem__, self._encode(piece))
            check_count(earlier + len(ids), max_tokens)
        return ids

    def _encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        try:
            # Unlike `encode`, this releases Python's lock and does not compute offsets.
            [encoding] = self._backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
            return encoding.ids
        except BaseException as error:
            if not has_panicked(error):
                raise
            raise CheckpointError(
                f"tokenizer.json: its pattern gives up on this text ({str(error)[:200]}): take the "
                "tokenizer.json of the original model"
            ) from None

    def _check_length(self, text: str, max_tokens: int, earlier: int) -> None:
        """Refuse a text whose length alone shows that it has too many tokens.

        Only ASCII text is checked, because normalization may shorten other text. It must be text
        that can be cut: otherwise an added token may take in any white space around it.
        """
        if len(text) > max_tokens - earlier and text.isascii() and self._can_be_cut:
            check_count(earlier + -(-len(text) // self._longest_token), max_tokens)

    @cached_property
    def _special_tokens(self) -> tuple[list[int], list[int]]:
        """The special tokens that tokenizer.json puts before and after a text."""
        text, full = self._encode("a"), self._encode("a", add_special_tokens=True)
        for start in range(len(full) - len(text) + 1):
            if full[start : start + len(text)] == text:
                return full[:start], full[start + len(text) :]
        raise CheckpointError(
            "tokenizer.json: expected a post_processor that adds tokens around a text: take the "
            "tokenizer.json of the original model"
        )

    @cached_property
    def _can_be_cut(self) -> bool:
        return can_be_cut(self._backend)

    @cached_property
    def _added_tokens(self) -> list[str]:
        return [token.content for token in self._backend.get_added_tokens_decoder().values()]

    @cached_property
    def _longest_token(self) -> int:
        """The most bytes of a token. Each character of the byte-level alphabet is a byte."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)

    @cached_property
    def _shared_ids(self) -> dict[int, int]:
        return {index: index for index in self._backend.get_vocab(with_added_tokens=True).values()}


def well_formed(text: str) -> str:
    """Join surrogate pairs, and replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def check_count(count: int, max_tokens: int | None) -> None:
    """Raise TextTooLongError if there are more than `max_tokens` tokens."""
    if max_tokens is not None and count > max_tokens:
        raise TextTooLongError(
            f"expected at most {max_tokens} tokens, got at least {count}: shorten it"
        )
