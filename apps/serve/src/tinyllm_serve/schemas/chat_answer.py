"""What POST /v1/chat/completions gives."""

from typing import Literal

from pydantic import BaseModel

from tinyllm_serve.generation import Ending
from tinyllm_serve.schemas.messages import CalledFunction
from tinyllm_serve.schemas.usage import UsageBody


class TokenLogprobBody(BaseModel):
    """A token, its log-probability, and its bytes: a token need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(TokenLogprobBody):
    """A token that was chosen, beside the likeliest ones."""

    top_logprobs: list[TokenLogprobBody]


class ChatLogprobs(BaseModel):
    """The log-probabilities of an answer's tokens, thinking included."""

    content: list[ChosenLogprob]


class ToolCallBody(BaseModel):
    """A call of a function; `index` only in streams."""

    index: int | None = None
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AnswerMessage(BaseModel):
    """An answer, or in a stream what is new of it."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallBody] | None = None


class ChatChoice(BaseModel):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: Ending


class ChatAnswer(BaseModel):
    """All answers, when they are complete."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody


class ChatDelta(BaseModel):
    """What is new of one of the answers."""

    index: int
    delta: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: Ending | None = None


class ChatChunk(BaseModel):
    """An event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatDelta]
    usage: UsageBody | None = None
