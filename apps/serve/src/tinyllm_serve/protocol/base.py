"""Bases of request bodies, and the token counts that responses share."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from tinyllm_engine import Usage

from tinyllm_serve.protocol.input_size import is_larger

T = TypeVar("T")

MAX_ITEMS = 1 << 14
"""The most messages, parts of a message, and properties of a schema. The longest context of a Qwen
model, 262,144 tokens, then holds 16 tokens of each."""

MAX_TOOLS = 1024

MAX_TOKENS = 1 << 20
"""The most tokens of a list, more than the context of any Qwen model."""

MAX_NAME = 256
"""The most characters of a name or an id."""

ListOf = Annotated[list[T], Field(fail_fast=True)]
"""A list whose validation stops at the first wrong item. A list of wrong items would otherwise
have an error for each item, of about 1 kB and 10 us."""

DictOf = Annotated[dict[str, T], Field(fail_fast=True)]
"""A dictionary whose validation stops at the first wrong value."""

NeutralValues: TypeAlias = Mapping[str, Sequence[object]]
"""The accepted values of fields, by name."""

UNSUPPORTED = "unsupported_parameter"
"""The kind of the errors of `Strict.unsupported`, and their code."""

MAX_SCHEMA = 1 << 18
"""The most characters of a JSON schema. The engine compiles no longer ones."""


def _check_schema(schema: dict[str, object]) -> dict[str, object]:
    # Count before the schema is written as JSON, which holds Python's lock: 90,000 numbers take
    # 0.04 s. Each value needs three characters, two of them between values.
    if is_larger(schema, MAX_SCHEMA, per_value=3):
        raise ValueError(f"expected at most {MAX_SCHEMA:,} characters: simplify it")
    try:
        json.dumps(schema, allow_nan=False)
    except ValueError:  # 1e999 is read as infinity, which no grammar and no response can express
        raise ValueError("expected numbers up to 1.8e308, got a larger one: lower it") from None
    return schema


JsonSchema = Annotated[
    dict[str, object], Field(max_length=MAX_ITEMS), AfterValidator(_check_schema)
]
"""A JSON schema of bounded size."""

SmallName = Annotated[str, Field(max_length=MAX_NAME)]

ChatFinishReason = Literal["stop", "length", "tool_calls"]

EndUser = Annotated[
    str | None, Field(max_length=MAX_NAME, description="Name of the user, for the server's log.")
]


Empty = Annotated[list[object], Field(max_length=0)]
"""A list without items, which SDKs add to messages that they send back."""


def expect(message: str, hints: Mapping[str, str] | None = None) -> WrapValidator:
    """Return the annotation of a field that accepts few values, with the message for all others.

    Args:
        message: the message.
        hints: messages for texts that have one of their own.
    """

    def check(value: object, handler: Callable[[object], object]) -> object:
        try:
            return handler(value)
        except ValidationError:
            own = (hints or {}).get(value) if isinstance(value, str) else None
            raise ValueError(own or message) from None

    return WrapValidator(check)


TokenLimit = Annotated[
    int | None,
    Field(ge=1),
    expect("expected an integer from 1 on: leave it out for the server's limit"),
]
"""The most tokens of an answer. Other servers take -1 for no limit."""


class Strict(BaseModel):
    """A strict object: no unknown fields, no conversion of types, no NaN.

    A field of any name may be null, which means the same as leaving it out. Clients that convert an
    answer to a dictionary and send it back include all of OpenAI's fields, most of them null.

    Attributes:
        unsupported: fields of other servers that this server refuses, each with the reason.
        neutral: values of such fields that are accepted, because they ask for what the server does
            in any case.
    """

    unsupported: ClassVar[Mapping[str, str]] = {}
    neutral: ClassVar[NeutralValues] = {}

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        json_schema_extra={"additionalProperties": {"type": "null"}},
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: object) -> object:
        if not isinstance(body, dict):
            return body
        names = {field.alias or name for name, field in cls.model_fields.items()}
        kept = {name: body[name] for name in names if body.get(name) is not None}
        for name, value in body.items():
            if value is not None and name not in names:
                if any(_is_equal(value, each) for each in cls.neutral.get(name, ())):
                    continue
                if name in cls.unsupported:
                    # pydantic takes braces of the message for the names of its context.
                    context = {"name": name, "reason": cls.unsupported[name]}
                    raise PydanticCustomError(UNSUPPORTED, "{name}: {reason}", context)
                kept[name] = value
                break  # one unknown field is enough for the error
        return kept

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe the object, with null as a value of each field that may be left out."""
        schema = handler(core_schema)
        described = handler.resolve_ref_schema(schema)
        fields: dict[str, Any] = described.get("properties", {})
        for name in fields.keys() - set(described.get("required", ())):
            if not _allows_null(fields[name]):
                fields[name] = {"anyOf": [fields[name], {"type": "null"}]}
        return schema


def _is_equal(value: object, other: object) -> bool:
    """Return True for equal values of JSON. In Python, False equals 0."""
    return type(value) is type(other) and value == other


def _allows_null(schema: Mapping[str, Any]) -> bool:
    """Return True for the JSON schema of a field whose type has None, and for that of any value."""
    kinds = schema.get("anyOf", [schema])
    is_any = not schema.keys() & {"anyOf", "oneOf", "type", "enum", "const", "$ref"}
    return is_any or any(kind.get("type") == "null" for kind in kinds)


class CacheControl(Strict):
    """A mark at the end of a prefix to cache. It has no effect: all prefixes are cached."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class ClientFields(Strict):
    """Fields that SDKs send by default.

    A value is accepted if the server does what it asks for anyway, and refused otherwise.
    """

    metadata: DictOf[Annotated[str, Field(max_length=512)]] | None = Field(
        default=None, max_length=16, description="Returned by /v1/responses."
    )
    store: Annotated[
        Literal[False] | None,
        expect("expected false: nothing is stored here, send the items of a conversation again"),
    ] = Field(default=None, description="Nothing is stored; true is refused.")
    service_tier: Literal["auto", "default"] | None = Field(
        default=None, description="There is one tier; `priority` is a field of its own."
    )
    prompt_cache_key: str | None = Field(
        default=None,
        max_length=1024,
        description="With replicas, requests of one key prefer one replica and its cache.",
    )
    prompt_cache_retention: Literal["in_memory"] | None = None
    safety_identifier: EndUser = None
    user: EndUser = None

    @property
    def end_user(self) -> str | None:
        """The name of the user to log: `user`, otherwise `safety_identifier`."""
        return self.user or self.safety_identifier


def is_null(value: object) -> bool:
    """Return True for None: the condition of response fields that are left out when null."""
    return value is None


class CompletionFields(BaseModel):
    """The fields of responses of both kinds of completions."""

    id: str
    created: int
    model: str
    system_fingerprint: None = None


class PromptTokens(BaseModel):
    """Prompt tokens by kind."""

    cached_tokens: int


class CompletionTokens(BaseModel):
    """Completion tokens by kind."""

    reasoning_tokens: int


class UsageBody(BaseModel):
    """Token counts of a request over all its answers. A prompt with several answers counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: CompletionTokens

    @classmethod
    def of(
        cls, usages: Sequence[Usage | None], reasoning_tokens: int = 0, *, choices: int = 1
    ) -> "UsageBody":
        """Sum over all answers. Each prompt has `choices` consecutive answers.

        An answer that has not begun has the usage None. A prompt counts once one of its answers has
        begun.
        """
        begun = [usage for usage in usages if usage is not None]
        groups = (usages[first : first + choices] for first in range(0, len(usages), choices))
        prompts = [usage for group in groups for usage in [*filter(None, group)][:1]]
        prompt = sum(usage.prompt_tokens for usage in prompts)
        cached = sum(usage.cached_tokens for usage in prompts)
        completion = sum(usage.completion_tokens for usage in begun)
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokens(cached_tokens=cached),
            completion_tokens_details=CompletionTokens(reasoning_tokens=reasoning_tokens),
        )
