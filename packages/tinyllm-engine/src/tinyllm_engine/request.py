"""Requests, and the state of a request in the engine."""

import operator
import reprlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from numbers import Real
from types import UnionType
from typing import SupportsIndex

from tinyllm_qwen import QwenConfig, Sampler, SamplingParams, TextTooLongError
from tinyllm_qwen.generate import check_model_prompt
from tinyllm_qwen.text.output import OutputProcessor

from tinyllm_engine.errors import PromptTooLongError, RequestError
from tinyllm_engine.grammar.constraint import Constraint
from tinyllm_engine.grammar.grammar import Grammar
from tinyllm_engine.kv.block_manager import block_hashes
from tinyllm_engine.output import Output, RequestFinishReason, SampledToken, Usage


def check_prompt(prompt: Sequence[int], config: QwenConfig) -> None:
    """Raise RequestError unless the model can compute the prompt and one more token."""
    try:
        check_model_prompt(prompt, config)
    except TextTooLongError as error:
        # Clients such as LiteLLM recognize the error by these words.
        most = f"this model's maximum context length is {config.context_length} tokens"
        raise PromptTooLongError(f"{error}; {most}") from error
    except ValueError as error:
        raise RequestError(str(error)) from error


_TYPES: tuple[tuple[str, type | UnionType, str], ...] = (
    ("sampling", SamplingParams, "SamplingParams"),
    ("stop", Iterable, "a list of strings"),
    ("tenant", str, "a string"),
    ("weight", Real, "a finite number above 0"),
    ("group", str, "a string"),
    ("cache_salt", str, "a string"),
    ("grammar", Grammar | None, "a Grammar or None"),
)
"""The types of fields of `Request`, which would make a step fail and not `Engine.add`."""


def _unexpected(name: str, expected: str, value: object) -> RequestError:
    """Return the error of a field of `Request`."""
    remedy = ": use `tokenizer.encode`" if name == "prompt" and isinstance(value, str) else ""
    return RequestError(f"{name}: expected {expected}, got {reprlib.repr(value)}{remedy}")


class TokenIds(tuple[int, ...]):
    """Token ids that were checked to be integers, so that requests can share them."""

    __slots__ = ()

    def __new__(cls, tokens: Iterable[SupportsIndex]) -> "TokenIds":
        """Copy and check the tokens.

        Raises:
            TypeError: if a token is not an integer.
        """
        return super().__new__(cls, map(operator.index, tokens))


@dataclass(frozen=True)
class Request:
    """A prompt, and the settings of its continuation.

    Attributes:
        prompt: token ids. `TokenIds`, such as the prompt of another request, are not copied again.
        max_tokens: the most tokens to generate. The context of the model, or the pages of the
            engine, may end earlier. 0 is allowed with `prompt_logprobs`, for a request that only
            scores its prompt.
        sampling: the sampling parameters; greedy by default.
        stop: strings at which the text ends. The output does not contain them.
        priority: requests of one tenant with lower numbers run first, but cannot starve requests
            with higher numbers: see `Scheduler`.
        tenant: the name of the client that shares the engine with other clients, such as an API
            key. Tenants get equal shares of the engine's time: see `TenantTime`.
        weight: the share of the tenant in relation to other tenants, above 0.
        group: the name of the requests that belong together, such as the choices of one HTTP
            request. The groups of a tenant take turns.
        cache_salt: requests share pages of equal prefixes only if their salts are equal. A tenant
            with its own salt cannot learn the prompts of other tenants from response times.
        embedding: True to compute the embedding of the prompt, and no tokens: the hidden state of
            the last token after the final norm, scaled to length 1. This is the pooling of
            Qwen3-Embedding (Zhang et al. 2025).
        grammar: the grammar of the answer; None for any text.
        logprobs: True to report the log-probability of each chosen token, also without
            `top_logprobs`.
        prompt_logprobs: True to report the log-probabilities of the prompt's tokens too. The
            request then computes its whole prompt, also what is in the prefix cache.
        ignore_end: True to continue after end tokens, for benchmarks.

    Raises:
        RequestError: if the prompt is empty, a field has an unsuitable type, `max_tokens` is too
            low, `weight` is not a finite number above 0, both `ignore_end` and a grammar are set,
            because the texts of a grammar end with an end token, or an embedding has settings of an
            answer.
    """

    prompt: Sequence[int]
    max_tokens: int = 512
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: Sequence[str] = ()
    priority: int = 0
    tenant: str = ""
    weight: float = 1.0
    group: str = ""
    cache_salt: str = ""
    embedding: bool = False
    grammar: Grammar | None = None
    logprobs: bool = False
    prompt_logprobs: bool = False
    ignore_end: bool = False

    def __post_init__(self) -> None:
        """Check the fields that can be checked without a model."""
        # Copies, because the caller may change the originals.
        try:
            if type(self.prompt) is not TokenIds:
                object.__setattr__(self, "prompt", TokenIds(self.prompt))
        except TypeError:
            raise _unexpected("prompt", "integers", self.prompt) from None
        if not self.prompt:
            raise RequestError("prompt: expected at least one token, got none")
        for name in ("max_tokens", "priority"):
            try:
                object.__setattr__(self, name, operator.index(getattr(self, name)))
            except TypeError:
                raise _unexpected(name, "an integer", getattr(self, name)) from None
        for name, kind, expected in _TYPES:
            if not isinstance(getattr(self, name), kind):
                raise _unexpected(name, expected, getattr(self, name))
        stop = tuple(self.stop)
        if isinstance(self.stop, str) or not all(isinstance(text, str) for text in stop):
            raise _unexpected("stop", "a list of strings", self.stop)
        object.__setattr__(self, "stop", stop)
        if self.max_tokens < (least := 0 if self.prompt_logprobs else 1):
            raise RequestError(f"max_tokens: expected at least {least}, got {self.max_tokens}")
        if not 0 < self.weight < inf:
            raise RequestError(f"weight: expected a finite number above 0, got {self.weight}")
        if self.grammar is not None and self.ignore_end:
            raise RequestError("ignore_end: expected False with a grammar, whose texts end")
        if self.embedding and (self.grammar is not None or self.stop or self.wants_logprobs):
            raise RequestError("embedding: expected no grammar, stop or logprobs, which it ignores")

    @property
    def wants_logprobs(self) -> bool:
        """True if the request asks for log-probabilities."""
        return self.logprobs or self.prompt_logprobs or self.sampling.top_logprobs > 0


@dataclass(eq=False)
class RequestSlots:
    """The slots of recurrent state that a running request uses; see `StateSlots`.

    Attributes:
        own: the slots that only this request uses: one for the state after its computed tokens, and
            one more for each draft token of the step.
        current: the slot that the next pass loads: `own[0]`, the slot of a snapshot, or `NO_STATE`
            before the first token.
        held: the snapshots that this request holds, by block hash. Passes of this step save some
            of them.
    """

    own: list[int]
    current: int
    held: dict[bytes, int] = field(default_factory=dict)


@dataclass(eq=False)
class RequestState:
    """A request in the engine, with its state. A caller runs or cancels the request with it.

    The tokens of the prompt are prefilled, many at a time. Each generated token is decoded. The
    sampler chooses a token after the last token of the prompt, and after each decoded token. After
    a preemption the generated tokens are decoded again, several in one step, with the same result.

    Attributes:
        request: the prompt and the settings, as the caller gave them.
        arrival: the number of requests that were added before this request.
        max_tokens: the most tokens to generate, within the context and the pages; 0 for an
            embedding.
        sampler: the sampler, advanced to the last token in `tokens` until the end.
        output_processor: the converter of tokens to text.
        constraint: the state of the grammar; None without a grammar, and after the end.
        tokens: prompt and generated tokens.
        num_computed_tokens: the number of tokens whose keys and values are in the pages.
        block_table: page numbers: page `block_table[i]` holds tokens i * page_size to
            (i + 1) * page_size.
        slots: the slots of recurrent state; None while the request waits, or if the model has no
            recurrent layers.
        branches: lengths of prefixes after which a snapshot is saved, because another prompt has
            the same tokens up to there.
        num_cached_tokens: prompt tokens that were in the prefix cache at the first admission;
            None before it.
        draft_tokens: draft tokens after `tokens`, verified in the next step.
        acceptance_rate: moving average of the share of accepted draft tokens.
        drafts_resume_at: the length of `tokens` at which a pause without draft tokens ends.
        outputs: outputs that no caller has received yet; see `Engine.run`.
        finish_reason: None until the request has ended.
        error: the failure, if the finish reason is "error".
        is_suspect: True after a failed step with this request, until its next token.
        failures: failed steps with this request alone, since the latest token.
        embedding: the embedding of the prompt, E numbers; None before its computation.
        prompt_logprobs: the tokens of the prompt so far, if the request asks for them.
    """

    request: Request
    arrival: int
    max_tokens: int
    sampler: Sampler
    output_processor: OutputProcessor
    constraint: Constraint | None = None
    tokens: list[int] = field(init=False)
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    slots: RequestSlots | None = None
    branches: set[int] = field(default_factory=set)
    num_cached_tokens: int | None = None
    draft_tokens: list[int] = field(default_factory=list)
    acceptance_rate: float = 1.0
    drafts_resume_at: int = 0
    outputs: deque[Output] = field(default_factory=deque)
    finish_reason: RequestFinishReason | None = None
    error: RuntimeError | None = None
    is_suspect: bool = False
    failures: int = 0
    embedding: list[float] | None = None
    prompt_logprobs: list[SampledToken] = field(default_factory=list)
    _block_hashes: list[bytes] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Start with the tokens of the prompt, of which the first has no log-probability."""
        self.tokens = list(self.prompt)
        if self.request.prompt_logprobs:
            self.prompt_logprobs.append(SampledToken(self.tokens[0]))

    @property
    def prompt(self) -> Sequence[int]:
        """The token ids of the prompt."""
        return self.request.prompt

    @property
    def tenant(self) -> str:
        """The tenant of the request."""
        return self.request.tenant

    @property
    def weight(self) -> float:
        """The weight of the tenant."""
        return self.request.weight

    @property
    def group(self) -> str:
        """The group of the request within its tenant."""
        return self.request.group

    @property
    def priority(self) -> int:
        """The priority of the request within its tenant; lower numbers run first."""
        return self.request.priority

    @property
    def is_embedding(self) -> bool:
        """True if the request is for an embedding, and not for tokens."""
        return self.request.embedding

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True while the log-probabilities of the prompt are wanted: until the first new token."""
        return self.request.prompt_logprobs and not self.generated

    @property
    def generates(self) -> bool:
        """True if the request is for new tokens, and not only for its prompt."""
        return self.max_tokens > 0

    @property
    def top_logprobs(self) -> int:
        """The number of most likely tokens to report with each token."""
        return self.request.sampling.top_logprobs

    @property
    def num_prompt_tokens(self) -> int:
        """The length of the prompt, which is also the position of the first decoded token."""
        return len(self.prompt)

    @property
    def is_prefilling(self) -> bool:
        """True while tokens of the prompt remain to be prefilled."""
        return self.num_computed_tokens < self.num_prompt_tokens

    @property
    def generated(self) -> int:
        """The number of tokens generated so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def remaining(self) -> int:
        """The number of tokens that may still be generated."""
        return self.max_tokens - self.generated

    @property
    def usage(self) -> Usage:
        """The token counts so far."""
        return Usage(self.num_prompt_tokens, self.num_cached_tokens or 0, self.generated)

    @property
    def wants_logprobs(self) -> bool:
        """True if the request asks for log-probabilities."""
        return self.request.wants_logprobs

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Return the ids of positions `start` to `stop`, in `tokens` followed by `draft_tokens`."""
        num_tokens = len(self.tokens)
        if stop <= num_tokens:
            return self.tokens[start:stop]
        drafts = self.draft_tokens[max(0, start - num_tokens) : stop - num_tokens]
        return self.tokens[start:] + drafts

    def block_hashes(self, page_size: int) -> list[bytes]:
        """Return the block hashes of all full pages of `tokens`, also of pages not yet computed."""
        self._block_hashes = block_hashes(
            self.tokens, page_size, self._block_hashes, salt=self.request.cache_salt
        )
        return self._block_hashes

    def prompt_output(self) -> Output:
        """Return the output of a request without new tokens, after its computation."""
        return Output(
            "",
            self.tokens[-1],
            self.finish_reason,
            self.usage,
            embedding=self.embedding,
            prompt_logprobs=tuple(self.prompt_logprobs),
        )

    def accept(self, sampled: Sequence[SampledToken]) -> list[Output]:
        """Append sampled tokens through the first that differs from the draft or ends the text.

        Args:
            sampled: the tokens chosen after the last token of `tokens` and after each draft token.
                Each was chosen as if all draft tokens before it were correct.

        Returns:
            An output for each appended token; at least one.
        """
        outputs: list[Output] = []
        logprobs = () if self.generated else tuple(self.prompt_logprobs)
        for chosen, expected in zip(sampled, [*self.draft_tokens, None], strict=True):
            token = chosen.token
            self.tokens.append(token)
            self.sampler.advance(token)
            text, self.finish_reason = self.output_processor.push(token, ended=self.remaining == 0)
            outputs.append(
                Output(
                    text,
                    token,
                    self.finish_reason,
                    self.usage,
                    chosen.logprob,
                    chosen.top,
                    prompt_logprobs=logprobs,
                    stop=self.output_processor.stop,
                )
            )
            logprobs = ()
            if self.finish_reason is not None or token != expected:
                break
        if self.constraint is not None:
            self.constraint.consume([output.token for output in outputs])
        self.draft_tokens.clear()
        self.is_suspect, self.failures = False, 0
        return outputs

    def finish(self, reason: RequestFinishReason) -> None:
        """End the request, and drop the memory of its grammar and of its penalties.

        The caller may keep the state for long, for its tokens.
        """
        self.finish_reason = reason
        self.constraint = None
        self.sampler = Sampler(SamplingParams(), vocab_size=1)  # no further token is chosen
