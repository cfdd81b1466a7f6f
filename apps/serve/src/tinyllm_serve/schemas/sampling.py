"""The fields of a request that say how tokens are chosen."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from tinyllm_serve.schemas.response_format import ResponseFormat, TextFormat
from tinyllm_serve.schemas.strict import Strict
from tinyllm_serve.schemas.structured_outputs import StructuredOutputs

MAX_CHOICES = 16
MAX_STOPS = 16

Stop = Annotated[str, Field(min_length=1, max_length=1000)]


class StreamOptions(Strict):
    """What a stream tells beside its text."""

    include_usage: bool = Field(
        default=False, description="End with a chunk that has the token counts."
    )
    include_obfuscation: Literal[False] | None = None


class SamplingFields(Strict):
    """Common to chat and plain completions; None leaves a choice to the checkpoint's advice."""

    model: str | None = Field(default=None, description="The one that is served, or null.")
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=2**31 - 1, description="0 is off.")
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=100)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = Field(
        default=None,
        max_length=1024,
        description="Added to the scores of tokens, by id; -100 to 100.",
    )
    seed: int | None = Field(default=None, ge=0, lt=2**64, description="Choice i takes seed + i.")
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int = Field(default=0, ge=-1000, le=1000, description="Lower comes sooner.")
    ignore_eos: bool = Field(
        default=False, description="Go on after end tokens, as benchmarks want."
    )
    user: str | None = Field(
        default=None, max_length=256, description="Written to the server's log."
    )

    @field_validator("logit_bias")
    @classmethod
    def _ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for token, value in (bias or {}).items():
            if not (token.isascii() and token.isdecimal()):
                raise ValueError(f"expected token ids as keys, got {token[:40]!r}")
            if not -100 <= value <= 100:
                raise ValueError(f"expected numbers from -100 to 100, got {value} for {token}")
        return bias

    @model_validator(mode="after")
    def _fit(self) -> "SamplingFields":
        if self.structured_outputs is not None and self.response_format is not None:
            raise ValueError("structured_outputs: expected no response format beside it")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: expected stream: true beside it")
        if self.ignore_eos and self.has_form:
            raise ValueError("ignore_eos: expected false where the answer has a form, which ends")
        return self

    @property
    def has_form(self) -> bool:
        """Whether not every text will do."""
        is_json = not isinstance(self.response_format, TextFormat | None)
        return is_json or self.structured_outputs is not None

    @property
    def choices(self) -> int:
        """How many answers are wanted."""
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        """Whether a stream is to end with the counts."""
        return self.stream_options is not None and self.stream_options.include_usage
