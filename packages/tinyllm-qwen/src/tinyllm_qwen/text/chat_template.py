"""Chat templates, which render messages as a prompt in the format of the model's training."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tinyllm_qwen.config.fields import Fields, show
from tinyllm_qwen.config.json_object import read_fields
from tinyllm_qwen.errors import CheckpointError, TemplateError
from tinyllm_qwen.regular_file import exists_or_broken_link, read_regular_file
from tinyllm_qwen.text.encoder import well_formed
from tinyllm_qwen.text.token_marks import TokenMarks

MAX_BYTES = 100_000  # published templates have up to 20,000; compiling takes 20 us per byte

Message: TypeAlias = Mapping[str, object]
"""A turn of a conversation, with the fields `role` and `content`. A turn of the assistant may also
have `reasoning_content` and `tool_calls`."""


_TURN = '{"role": "user", "content": "..."}'


def text_messages(messages: Sequence[Message]) -> list[Message]:
    """Check that messages are mappings, and join the text parts of each content.

    A part is {"type": "text", "text": ...}, as in requests to OpenAI's API.

    Raises:
        ValueError: if the messages are not a list of mappings, or a part is not text.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise ValueError(
            f"messages: expected a list of messages, got {show(messages)}: write [{_TURN}]"
        )
    turns: list[Message] = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(
                f"messages[{index}]: expected a mapping, got {show(message)}: write {_TURN}"
            )
        content = message.get("content")
        if isinstance(content, list | tuple):
            name = f"messages[{index}].content"
            texts = [_text(part, f"{name}[{number}]") for number, part in enumerate(content)]
            turns.append({**message, "content": "".join(texts)})
        elif isinstance(content, Mapping):
            raise ValueError(
                f"messages[{index}].content: expected a text or a list of parts, got "
                f"{show(content)}: write [{show(content)}]"
            )
        else:
            turns.append(message)
    return turns


def _text(part: object, name: str) -> str:
    """Return the text of a part of a message's content."""
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    raise ValueError(
        f'{name}: expected {{"type": "text", "text": ...}}, got {show(part)}: the model reads text '
        "alone, leave out images, audio and files"
    )


class ChatTemplate:
    """The jinja2 template of a checkpoint, rendered as Hugging Face renders it."""

    def __init__(
        self,
        sources: Mapping[str, str],
        origin: str = "chat template",
        variables: Mapping[str, object] | None = None,
    ) -> None:
        """Store the templates. Each template is compiled when it is first rendered.

        Args:
            sources: the text of each template by name. "default" is required. "tool_use" is
                optional, for conversations with tools.
            origin: the file of the templates, for error messages.
            variables: variables of every render, such as `eos_token`.

        Raises:
            CheckpointError: if there is no default template.
        """
        if "default" not in sources:
            raise CheckpointError(
                f'{origin}: expected a chat template named "default", got {sorted(sources)}: '
                "name one of them so"
            )
        self._sources = dict(sources)
        self._origin = origin
        self._variables = dict(variables or {})
        self._renderers: dict[
            tuple[str, TokenMarks | None], Callable[[Mapping[str, object]], str]
        ] = {}

    @classmethod
    def from_folder(
        cls, folder: Path, variables: Mapping[str, object] | None = None
    ) -> "ChatTemplate | None":
        """Read the chat template of the checkpoint in `folder`; return None if there is none.

        `chat_template.jinja` takes precedence over `chat_template.json`, and both over the field
        `chat_template` of `tokenizer_config.json`.

        Raises:
            CheckpointError: if the file with the template is broken.
        """
        path = folder / "chat_template.jinja"
        if exists_or_broken_link(path):
            return cls({"default": _read_text(path)}, str(path), variables)
        for name in ("chat_template.json", "tokenizer_config.json"):
            fields = read_fields(folder / name)
            sources = _sources(fields)
            if sources:
                return cls(sources, fields.source, variables)
        return None

    def render(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, object] | None = None,
        marks: TokenMarks | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Render the prompt for `messages`.

        As in Hugging Face's implementation, a field of a message that is None counts as absent. The
        content of a message is not escaped: without marks, the text "<|im_end|>" in a message looks
        like the end of its turn.

        Args:
            messages: the conversation, at least one turn.
            variables: further variables of the template, such as `enable_thinking`.
            marks: marks for the tokens of the template itself; None to render plain text.
            tools: JSON schemas of the functions that the model may call.
            add_generation_prompt: True to end the prompt with the start of the assistant's turn.

        Raises:
            ValueError: if there are no messages, or a value is not of a JSON type.
            TemplateError: if the template refuses the messages or fails on them.
            CheckpointError: if the template is broken, exceeds its limits, or attempts to access
                Python's internals.
        """
        if not messages:
            raise ValueError("messages: expected at least one, got none")
        clean = str.__str__ if marks is None else well_formed
        turns = [
            {
                clean(_key(key, "messages")): _json_value(value, f"messages[{index}].{key}", clean)
                for key, value in message.items()
                if value is not None
            }
            for index, message in enumerate(messages)
        ]
        own_variables = self._variables
        if marks is not None:
            own_variables = {
                name: marks.mark(value) if isinstance(value, str) else value
                for name, value in own_variables.items()
            }
            for turn in turns:
                if turn.get("role") == "assistant" and "content" in turn:
                    turn["content"] = marks.mark_answer(turn["content"])
        try:
            return self._renderer("tool_use" if tools is not None else "default", marks)(
                {
                    **own_variables,
                    "documents": None,
                    **{
                        name: _json_value(value, name, clean)
                        for name, value in (variables or {}).items()
                    },
                    "messages": turns,
                    "tools": _json_value(tools, "tools", clean),
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except TemplateError as error:
            if marks is None:
                raise
            raise TemplateError(marks.unmark(str(error))) from error

    def mentions(self, token: str) -> bool:
        """Return True if `token` occurs in a template or in one of its own variables."""
        values = [value for value in self._variables.values() if isinstance(value, str)]
        return any(token in text for text in (*self._sources.values(), *values))

    def _renderer(
        self, name: str, marks: TokenMarks | None
    ) -> Callable[[Mapping[str, object]], str]:
        name = name if name in self._sources else "default"
        key = (name, marks)
        if key not in self._renderers:
            # Import here, because the import of jinja2 takes 0.1 s.
            from tinyllm_qwen.text.sandbox.sandbox import SandboxedTemplate

            mark = None if marks is None else marks.mark
            template = SandboxedTemplate(self._sources[name], self._origin, mark)
            self._renderers[key] = template.render
        return self._renderers[key]


def _read_text(path: Path) -> str:
    try:
        text = read_regular_file(path, MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: not UTF-8 text: download it again") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _sources(fields: Fields) -> dict[str, str]:
    """Return templates by name, from a string or a list of {"name": ..., "template": ...}."""
    value = fields.raw("chat_template")
    if value is None:
        return {}
    sources: dict[str, str] = {}
    for item in value if isinstance(value, list) else [{"name": "default", "template": value}]:
        name, text = (
            (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(text, str):
            raise fields.error("chat_template", "a template, or a list of named templates")
        if len(text) > MAX_BYTES:
            raise CheckpointError(
                f"{fields.source}: chat_template: expected at most {MAX_BYTES} characters, got "
                f"{len(text)}: take the template of the original model"
            )
        sources[name] = text
    return sources


def _json_value(value: object, name: str, clean: Callable[[str], str]) -> object:
    """Copy a value to JSON types, because a template could call methods of other objects.

    `clean` converts each text. It is given the text of a str-based Enum.
    """
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        return clean(str.__str__(value))
    if isinstance(value, Mapping):
        return {
            clean(_key(key, name)): _json_value(item, f"{name}.{key}", clean)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_json_value(item, f"{name}[{index}]", clean) for index, item in enumerate(value)]
    raise ValueError(
        f"{name}: expected text, a number, a list or a mapping, got {type(value).__name__}"
    )


def _key(key: object, name: str) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{name}: expected text for a key, got {key!r}")
    return key
