"""Prompts: the tokens of conversations and of texts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from secrets import token_hex
from typing import Literal, cast

from tinyllm_qwen import CheckpointError, TemplateError, TextTooLongError, Tokenizer
from tinyllm_qwen.text.chat_prompt import ChatPrompt
from tinyllm_qwen.text.reasoning import CLOSE, OPEN

from tinyllm_serve.generation.system_messages import fold_later, join_leading
from tinyllm_serve.http.errors import TOO_LONG, ApiError
from tinyllm_serve.protocol.chat import TemplateVariables
from tinyllm_serve.protocol.completions import TextOrTokens
from tinyllm_serve.protocol.messages import AssistantMessage, Message, text_of
from tinyllm_serve.protocol.tools import Tool

CallFormat = Literal["json", "xml"]
"""The format of function calls: Qwen3's JSON objects, or Qwen3.5's XML tags."""


@dataclass(frozen=True)
class Prompt:
    """The tokens of a conversation, and the reasoning that its answer begins with.

    Attributes:
        tokens: the prompt.
        opened: True if the prompt ends inside the reasoning.
        call_format: the format in which the model writes function calls.
    """

    tokens: list[int]
    opened: bool
    call_format: CallFormat
    _has_switch: Callable[[], bool]

    @cached_property
    def thinks(self) -> bool:
        """True if the answer begins with reasoning. May render the conversation once more."""
        # A template that can switch reasoning off belongs to a model that reasons by default.
        return self.opened or self._has_switch()

    @property
    def reasoning_close(self) -> str | None:
        """The text that ends the reasoning; None without reasoning."""
        return CLOSE if self.thinks else None

    @property
    def reasoning_open(self) -> str:
        """The text that begins the reasoning; empty if the model need not write it."""
        return OPEN if self.thinks and not self.opened else ""

    @classmethod
    def of_chat(
        cls,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        variables: TemplateVariables,
        *,
        max_tokens: int,
        continues: bool = False,
        max_model_len: int | None = None,
        allow_special_tokens: bool = False,
    ) -> "Prompt":
        """Render a conversation and its tools with the model's chat template, and tokenize them.

        Leading system messages are joined. Later ones are moved into the messages beside them if
        the template refuses them.

        Args:
            tokenizer: the model's tokenizer and template.
            messages: the conversation.
            tools: the functions that the template shows to the model.
            variables: variables of the template.
            max_tokens: the most tokens of the prompt.
            continues: True to end the prompt with the text of the last message, or its reasoning.
            max_model_len: the most tokens of the prompt and its answer, for the error of a prompt
                that is too long; see `length_errors`.
            allow_special_tokens: True to encode control tokens in messages as such.

        Raises:
            TemplateError: if there is no template, or the template refuses the conversation.
            ApiError: 400 if the template ignores tools or cannot render the conversation within
                its limits, or if the prompt has more than `max_tokens` tokens.
        """
        messages = join_leading(messages)
        # Templates add text after a message. The mark shows where the text of the last one ends.
        final, mark = _final_text(messages) if continues else None, token_hex(16)

        template = tokenizer.chat_template
        xml = template is not None and template.mentions("<function=")

        def template_forms(messages: Sequence[Message]) -> list[dict[str, object]]:
            forms = [message.template_form for message in messages]
            if xml:
                _make_arguments_objects(forms)
            if final is not None:
                forms[-1][final.field] = final.text + mark
            return forms

        turns = template_forms(messages)
        offered = [tool.template_form for tool in tools] or None

        def render(tools: list[dict[str, object]] | None, thinking: bool | None) -> ChatPrompt:
            try:
                prompt = tokenizer.chat_prompt(
                    turns,
                    {**variables.extra, "enable_thinking": thinking},
                    tools=tools,
                    add_generation_prompt=final is None,
                    allow_special_tokens=allow_special_tokens,
                )
            except CheckpointError as error:
                raise ApiError(
                    400,
                    "messages: expected a conversation that the chat template renders within its "
                    "limits: send fewer or shorter messages",
                    param="messages",
                ) from error
            return prompt if final is None else prompt.before(mark)

        thinking = variables.enable_thinking
        try:
            prompt = render(offered, thinking)
        except TemplateError:
            folded = fold_later(messages)
            if folded == messages:
                raise
            turns = template_forms(folded)
            prompt = render(offered, thinking)
        with length_errors("messages", max_model_len):
            tokens = prompt.encode(max_tokens)
        if offered and not tokenizer.shows_tools and prompt.marked == render(None, thinking).marked:
            raise ApiError(
                400,
                "tools: expected none, this model's chat template ignores them: leave them out, or "
                "switch functions off in the client",
                param="tools",
            )

        def has_switch() -> bool:
            return (
                final is None
                and thinking is not False
                and prompt.marked != render(offered, False).marked
            )

        opened = prompt.opens_reasoning
        if final is not None:
            opened = final.is_reasoning
        return cls(tokens, opened, "xml" if xml else "json", has_switch)


def _make_arguments_objects(forms: Sequence[dict[str, object]]) -> None:
    """Replace arguments that are no object in messages, because templates in XML list their items.

    The server's own arguments may be incomplete, at the token limit.
    """
    for form in forms:
        for call in cast("list[dict[str, dict[str, object]]]", form.get("tool_calls") or []):
            arguments = call["function"]["arguments"]
            if not isinstance(arguments, dict):
                call["function"]["arguments"] = {"arguments": arguments} if arguments else {}


@dataclass(frozen=True)
class _FinalText:
    """The text of a conversation's last message that the answer continues."""

    field: Literal["content", "reasoning_content"]
    text: str

    @property
    def is_reasoning(self) -> bool:
        if self.field == "reasoning_content":
            return True
        return self.text.rfind(OPEN) > self.text.rfind(CLOSE)


def _final_text(messages: Sequence[Message]) -> _FinalText:
    """Return the text of the last message, or its reasoning if no text follows it.

    Raises:
        ApiError: 400 if the last message is not the assistant's, has neither, or has calls.
    """
    last = messages[-1]
    if isinstance(last, AssistantMessage) and not last.tool_calls:
        if text := text_of(last.content or ""):
            return _FinalText("content", text)
        if last.reasoning_content:
            return _FinalText("reasoning_content", last.reasoning_content)
    message = (
        "continue_final_message: expected a last message of the assistant, with text or reasoning "
        "and without calls: leave the field out"
    )
    raise ApiError(400, message, param="continue_final_message")


def token_lists(
    given: TextOrTokens, tokenizer: Tokenizer, max_tokens: int, *, add_special_tokens: bool = False
) -> Iterator[list[int]]:
    """Yield the tokens of each text. A single text or token list gives a list of one item.

    With `add_special_tokens`, texts get the special tokens of tokenizer.json around them.

    Raises:
        TextTooLongError: if a text has more than `max_tokens` tokens.
    """

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)

    if isinstance(given, str):
        yield encode(given)
        return
    single: list[int] = []
    for item in given:
        match item:
            case str():
                yield encode(item)
            case int():
                single.append(item)
            case list():
                yield item
    if single:
        yield single


@contextmanager
def length_errors(field: str, max_model_len: int | None = None) -> Iterator[None]:
    """Convert errors of texts that are too long.

    With `max_model_len`, the message has the words by which clients such as LiteLLM recognize
    that a conversation is too long for the model.

    Raises:
        ApiError: 400, with OpenAI's code, for a text of the field `field`.
    """
    try:
        yield
    except TextTooLongError as error:
        message = f"{field}: {error}"
        if max_model_len is not None:
            message += f"; this model's maximum context length is {max_model_len} tokens"
        # Without its traceback: see `renamed_fields`.
        raise ApiError(400, message, param=field, code=TOO_LONG) from error.with_traceback(None)
