"""The results of the engine: tokens of requests, and statistics."""

from dataclasses import dataclass
from typing import Literal

RequestFinishReason = Literal["stop", "length", "cancelled", "error"]
"""The reason why a request has ended.

"stop": the text reached an end token or a stop string. "length": it reached `max_tokens`, the end
of the model's context, or that of the pages. "cancelled": the caller cancelled the request.
"error": see `RequestState.error`.
"""


@dataclass(frozen=True)
class Usage:
    """Token counts of a request so far.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: prompt tokens that were in the prefix cache when the request was admitted.
        completion_tokens: generated tokens, the end token included.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class TokenLogprob:
    """A token id and its log-probability under the model."""

    token: int
    logprob: float


@dataclass(frozen=True)
class SampledToken:
    """The token that the sampler chose after one position, or that follows in the prompt.

    Attributes:
        token: the id.
        logprob: the log-probability of the token; None unless the request asks for it.
        top: the `top_logprobs` most likely tokens, the most likely first.
    """

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Output:
    """One generated token, and the text that became complete with the token.

    The only output of a request that generates nothing has its embedding or log-probabilities.

    Attributes:
        text: the text to show next. It is empty while a character is incomplete, or while the text
            may be the start of a stop string.
        token: the id of the token; of the last token of the prompt if nothing is generated.
        finish_reason: the reason for the end in the last output; None in all outputs before.
        usage: token counts so far.
        logprob: the log-probability of the token; None unless the request asks for it.
        top: the `top_logprobs` most likely tokens, the most likely first.
        embedding: the embedding of the prompt, E numbers; None unless the request asks for it.
        prompt_logprobs: in the first output, the tokens of the prompt, if the request asks for
            them. The first token has no log-probability.
        stop: in the last output, the stop string that ended the text; None for other reasons.
    """

    text: str
    token: int
    finish_reason: RequestFinishReason | None
    usage: Usage
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
    embedding: list[float] | None = None
    prompt_logprobs: tuple[SampledToken, ...] = ()
    stop: str | None = None


@dataclass(frozen=True)
class EngineStats:
    """The state of an engine, and counts since it was made.

    Attributes:
        running: number of requests that hold pages.
        waiting: number of requests in the queue.
        pages_total: number of all pages.
        pages_used: number of pages that requests hold.
        pages_cached: number of pages that only the prefix cache holds.
        states_total: number of slots for recurrent states of requests; 0 without recurrent layers.
        states_used: number of these slots that requests hold.
        snapshots_total: number of slots for snapshots of recurrent states.
        snapshots_held: number of snapshots, after each of which a prefix can be continued.
        snapshots_used: number of snapshots that requests hold, and that are therefore not evicted.
        snapshot_hits: count of admissions that continued a snapshot.
        snapshot_evictions: count of snapshots that were evicted for others.
        prompt_tokens: count of tokens of all prompts that were admitted.
        cached_tokens: count of these tokens that were in the prefix cache.
        generated_tokens: count of generated tokens.
        preemptions: count of preemptions, in which a request frees its pages and waits again.
        draft_tokens: count of draft tokens that the model verified.
        accepted_tokens: count of draft tokens that were accepted.
        failed_steps: count of steps that raised an error.
    """

    running: int
    waiting: int
    pages_total: int
    pages_used: int
    pages_cached: int
    states_total: int
    states_used: int
    snapshots_total: int
    snapshots_held: int
    snapshots_used: int
    snapshot_hits: int
    snapshot_evictions: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    draft_tokens: int
    accepted_tokens: int
    failed_steps: int
