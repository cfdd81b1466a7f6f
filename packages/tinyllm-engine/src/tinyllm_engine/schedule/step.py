"""The work of one step, in integers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinyllm_engine.request import RequestState


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of a request that go through the model together.

    Attributes:
        request: the request.
        start: the position of the first token; all tokens before it are in the pages.
        stop: the position after the last token.
        tokens: the ids. Draft tokens come last.
        choices: the number of tokens to choose: one after the last own token and one after each
            draft token; 0 if own tokens remain after the chunk.
    """

    request: RequestState
    start: int
    stop: int
    tokens: list[int]
    choices: int = 0


@dataclass(frozen=True)
class Step:
    """Chunks that one step computes: prompts in a prefill pass, other tokens in a decode pass.

    Attributes:
        prefill: chunks of prompts.
        decode: last tokens of requests with their draft tokens, and tokens to be decoded again.
        copies: pages to copy first, (source, target), because their holders are about to write.
    """

    prefill: list[Chunk] = field(default_factory=list)
    decode: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
