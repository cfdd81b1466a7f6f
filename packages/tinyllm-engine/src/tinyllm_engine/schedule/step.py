"""The chunks of tokens that one step computes. Token ids are integers, not tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinyllm_ops import NO_STATE

from tinyllm_engine.request import RequestState


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of a request that one step computes.

    Attributes:
        request: the request.
        start: the position of the first token. All tokens before it are in the pages.
        stop: the position after the last token.
        tokens: the ids. Draft tokens come last.
        num_samples: the number of tokens to sample after the last tokens of the chunk. In a step it
            is 1 + len(request.draft_tokens), one after the last of `request.tokens` and one after
            each draft token; or 0 if the chunk ends before the last of `request.tokens`, or the
            request generates nothing. Draft tokens are never divided: a request gets them only if a
            single token of `request.tokens` is left to compute.
        is_scored: whether the request asks for the log-probabilities of these tokens of its prompt.
            After its first new token, a request computes its prompt again without them.
        load: the slot with the recurrent state after `start` tokens; `NO_STATE` for an empty text.
        saves: the slot in which the state after each of these lengths is saved. Empty for models
            without recurrent layers.
    """

    request: RequestState
    start: int
    stop: int
    tokens: list[int]
    num_samples: int = 0
    is_scored: bool = False
    load: int = NO_STATE
    saves: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_scores(self) -> int:
        """The number of last tokens after which the scores of all tokens are needed."""
        return len(self.tokens) if self.is_scored else self.num_samples


@dataclass(frozen=True)
class Step:
    """The chunks of one step: prompts in a prefill pass, other tokens in a decode pass.

    Attributes:
        prefill: chunks of prompts.
        decode: the latest tokens of requests with their draft tokens, and generated tokens that are
            decoded again after a preemption.
        copies: pairs of a source page and a target page to copy before the passes, because a
            request will write to a shared page.
    """

    prefill: list[Chunk] = field(default_factory=list)
    decode: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
