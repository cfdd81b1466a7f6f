"""An answer put together from the chunks of a stream."""

import time
from collections.abc import Mapping

from tinyllm_qwen import Stats
from tinyllm_qwen.text.reasoning import Segment

from tinyllm_chat.answer import Answer, Ending
from tinyllm_chat.answerer import Show


class RemoteAnswer:
    """What has come so far.

    Attributes:
        ending: the server's word for why the answer ended; None before.
    """

    def __init__(self, show: Show) -> None:
        """Begin: from now on time counts.

        Args:
            show: called with each piece of text.
        """
        self.ending: object = None
        self._show = show
        self._text = self._reasoning = ""
        self._began = self._first = self._latest = time.perf_counter()
        self._chunks = 0
        self._usage: Mapping[str, object] = {}

    def take(self, chunk: Mapping[str, object] | None) -> None:
        """Take a chunk, or a sign of life."""
        if chunk is None:
            return
        usage, choices = chunk.get("usage"), chunk.get("choices")
        if isinstance(usage, dict):
            self._usage = usage
        if not isinstance(choices, list) or not choices:
            return
        self.ending = choices[0].get("finish_reason") or self.ending
        delta = choices[0].get("delta", {})
        for field, thinking in (("reasoning_content", True), ("content", False)):
            if text := delta.get(field):
                self._say(Segment(str(text), thinking))

    def result(self, ending: Ending, seed: int) -> Answer:
        """The answer, and what it took as seen from here."""
        return Answer(
            text=self._text,
            reasoning=self._reasoning,
            finish_reason=ending,
            stats=self._stats if self._chunks else None,
            seed=seed,
        )

    @property
    def _stats(self) -> Stats:
        details = self._usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        return Stats(
            prompt_tokens=_count(self._usage.get("prompt_tokens"), 0),
            cached_tokens=_count(cached, 0),
            # A stream that was stopped has no counts: nearly every chunk is a token.
            generated_tokens=_count(self._usage.get("completion_tokens"), self._chunks),
            prefill_seconds=self._first - self._began,
            decode_seconds=self._latest - self._first,
        )

    def _say(self, segment: Segment) -> None:
        self._latest = time.perf_counter()
        if not self._chunks:
            self._first = self._latest
        self._chunks += 1
        if segment.thinking:
            self._reasoning += segment.text
        else:
            self._text += segment.text
        self._show(segment)


def _count(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise
