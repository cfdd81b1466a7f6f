"""Fields that chat and plain completions share: sampling, output format, streaming."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from tinyllm_qwen import GenerationConfig, SamplingParams

from tinyllm_serve.protocol.base import DictOf, EndUser, ListOf, NeutralValues, Strict
from tinyllm_serve.protocol.neutral import NeutralSampling
from tinyllm_serve.protocol.other_fields import NEUTRAL_VALUES, OTHER_NAMES
from tinyllm_serve.protocol.output_format import ResponseFormat, StructuredOutputs, TextFormat

MAX_CHOICES = 16
MAX_STOPS = 16

RANDOM_SEED = -1
"""The seed that means no seed, as in vLLM and llama-server."""

Stop = Annotated[str, Field(min_length=1, max_length=1000)]


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool = Field(
        default=False, description="End with a chunk that has the token counts."
    )
    continuous_usage_stats: bool = Field(
        default=False, description="Each chunk has the token counts so far."
    )
    include_obfuscation: Literal[False] | None = None


class GenerationFields(Strict):
    """Fields of all endpoints that generate text. None stands for the checkpoint's default."""

    model: str | None = Field(default=None, description="The served model, or null.")
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    ignore_eos: bool = Field(default=False, description="Generate past end tokens, for benchmarks.")
    priority: int = Field(
        default=0,
        ge=-1000,
        le=1000,
        description="Lower comes sooner. The operator allows numbers below 0.",
    )
    cache_salt: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Requests share cached prefixes only with requests of the same salt.",
    )


class SamplingFields(GenerationFields, NeutralSampling):
    """Fields of both kinds of completions. None stands for the checkpoint's default."""

    unsupported: ClassVar[Mapping[str, str]] = OTHER_NAMES
    neutral: ClassVar[NeutralValues] = NEUTRAL_VALUES

    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1, description="0 and -1 are off.")
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=1e-10, le=100)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: DictOf[float] | None = Field(
        default=None,
        max_length=1024,
        description="Added to the logits of tokens, by id; -100 to 100.",
    )
    seed: int | None = Field(
        default=None,
        ge=-(2**63),
        lt=2**64,
        description="Choice i takes seed + i, modulo 2**64. -1 is a random seed.",
    )
    stop: Stop | Annotated[ListOf[Stop], Field(max_length=MAX_STOPS)] | None = None
    response_format: ResponseFormat | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    best_of: int | None = Field(
        default=None, ge=1, description="Must be n, because this server ranks no answers."
    )
    stream_options: StreamOptions | None = None
    user: EndUser = None

    @field_validator("logit_bias")
    @classmethod
    def _check_bias(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for token, value in (bias or {}).items():
            # 10 digits exceed every vocabulary, and int() raises ValueError for 4,300 digits.
            if not (token.isascii() and token.isdecimal() and len(token) <= 10):
                raise ValueError(f"expected token ids as keys, got {token[:40]!r}")
            if not -100 <= value <= 100:
                raise ValueError(f"expected numbers from -100 to 100, got {value} for {token}")
        return bias

    @model_validator(mode="after")
    def _check_fields(self) -> "SamplingFields":
        if self.structured_outputs is not None and self.response_format is not None:
            raise ValueError("structured_outputs: expected no response format beside it")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: expected stream: true beside it")
        if self.best_of not in (None, self.choices):
            raise ValueError(
                f"best_of: expected {self.choices}, as n, got {self.best_of}: this server ranks "
                "no answers, ask for several by n"
            )
        if self.ignore_eos and self.has_format:
            raise ValueError("ignore_eos: expected false beside an output format, which ends")
        return self

    @property
    def field_names(self) -> Mapping[str, str]:
        """The request's names of the fields that the engine names differently, for errors."""
        return {}

    @property
    def has_format(self) -> bool:
        """True if the output must conform to a format."""
        is_json = not isinstance(self.response_format, TextFormat | None)
        return is_json or self.structured_outputs is not None

    @property
    def choices(self) -> int:
        """The number of answers to each prompt."""
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        """True if a stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_in_chunks(self) -> bool:
        """True if each chunk of a stream has the token counts so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def sampling_params(
        self, defaults: GenerationConfig, *, choice: int, top_logprobs: int
    ) -> SamplingParams:
        """Return the sampling parameters of one answer.

        The checkpoint's `defaults` replace fields that are None. `choice`, the index of the answer
        among all answers to its prompt, is added to the seed.
        """
        params = defaults.sampling(
            temperature=self.temperature,
            top_k=None if self.top_k is None else max(0, self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )
        return replace(
            params,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            seed=None if self.seed in (None, RANDOM_SEED) else (self.seed + choice) % 2**64,
            top_logprobs=top_logprobs,
        )
