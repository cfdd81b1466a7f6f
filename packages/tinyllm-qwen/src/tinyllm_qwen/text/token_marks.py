"""Marks that stand for the added tokens of a chat template while the template is rendered.

A chat template joins its own control tokens, such as `<|im_start|>`, and the texts of a
conversation to one text. A control token that a user has typed looks the same in that text. The
tokens of the template are therefore replaced by marks before it is rendered. A mark consists of
surrogates, which no well-formed text contains, so that no text of a conversation can forge a mark,
however the template divides and joins it. A mark has as many characters as its token, so that a
template may count and slice.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from tinyllm_qwen.errors import CheckpointError

MAX_MARKS = 1024  # the number of high surrogates; templates of Qwen have 12 tokens
_FILLER = "\udfff"
_MARK = re.compile("[\ud800-\udbff]\udfff*")
_SURROGATE = re.compile("[\ud800-\udfff]")


class TokenMarks:
    """A mark for each of some added tokens."""

    def __init__(self, tokens: Iterable[str], answer_tokens: Collection[str] = ()) -> None:
        """Choose the marks.

        Args:
            tokens: all tokens that get a mark.
            answer_tokens: the tokens that also count in the content of an assistant's turn.

        Raises:
            CheckpointError: if there are more than `MAX_MARKS` tokens.
        """
        ordered = sorted(tokens, key=len, reverse=True)  # the library prefers the longest token too
        if len(ordered) > MAX_MARKS:
            raise CheckpointError(
                f"chat template: expected at most {MAX_MARKS} added tokens, got {len(ordered)}: "
                "take the tokenizer.json of the original model"
            )
        self._mark_of = {
            token: chr(0xD800 + index) + _FILLER * (len(token) - 1)
            for index, token in enumerate(ordered)
        }
        self._token_of = {mark: token for token, mark in self._mark_of.items()}
        self._answer_mark_of = {
            token: mark for token, mark in self._mark_of.items() if token in answer_tokens
        }

    def mark(self, text: str) -> str:
        """Replace the tokens in a text of the template by their marks."""
        return _replace(text, self._mark_of)

    def mark_answer(self, value: object) -> object:
        """Replace the answer tokens in the content of an assistant's turn by their marks."""
        if isinstance(value, str):
            return _replace(value, self._answer_mark_of)
        if isinstance(value, list):
            return [self.mark_answer(item) for item in value]
        if isinstance(value, dict):
            return {key: self.mark_answer(item) for key, item in value.items()}
        return value

    def unmark(self, text: str) -> str:
        """Replace marks in `text` by their tokens."""
        return _SURROGATE.sub("\ufffd", _replace(text, self._token_of))  # of divided marks

    def split(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the text before each mark with the token of the mark; last, the rest with ""."""
        start = 0
        for found in _MARK.finditer(text):
            token = self._token_of.get(found[0])
            if token is not None:
                yield text[start : found.start()], token
                start = found.end()
        yield text[start:], ""


def _replace(text: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text
