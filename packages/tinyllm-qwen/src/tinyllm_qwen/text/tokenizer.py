"""The tokenizer of a checkpoint, which converts text to token ids and token ids to text."""

import codecs
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from tinyllm_qwen.config.fields import show
from tinyllm_qwen.config.generation import MAX_TOKEN_ID
from tinyllm_qwen.config.json_object import read_fields
from tinyllm_qwen.errors import CheckpointError, TemplateError
from tinyllm_qwen.text.chat_prompt import ChatPrompt
from tinyllm_qwen.text.chat_template import ChatTemplate, Message, text_messages
from tinyllm_qwen.text.encoder import TextEncoder, check_count
from tinyllm_qwen.text.token_marks import TokenMarks
from tinyllm_qwen.text.tokenizer_files import read_backend, read_named_tokens


def _byte_of_character() -> dict[str, int]:
    """Return the alphabet of byte-level BPE (GPT-2): the byte for which each character stands."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()
_DECODED_AT_ONCE = 10_000  # tokens; the library holds Python's lock for 2 ms

_OTHER_ARGUMENTS: Mapping[str, tuple[object, str]] = {
    "tokenize": (True, "`chat_prompt(messages).text` is the text"),
    "continue_final_message": (
        False,
        "leave the last message out, and append the tokens that `encode` returns for its text",
    ),
    "chat_template": (None, "write it to chat_template.jinja in the folder of the model"),
    "return_tensors": (None, "make an array of the token ids, such as mx.array([ids])"),
    "return_dict": (False, "the result is the list of token ids"),
    "return_assistant_tokens_mask": (False, "leave it out, there is no mask"),
    "padding": (False, "leave it out, the engine batches prompts of different lengths"),
    "truncation": (False, "send fewer or shorter messages"),
    "max_length": (None, "`chat_prompt(messages).encode(max_tokens)` refuses longer prompts"),
    "tokenizer_kwargs": (None, "`encode` has the options of the tokenizer"),
    "sanitize_control_tokens": (True, "allow_special_tokens=True keeps control tokens in messages"),
}
"""The arguments of Hugging Face's `apply_chat_template` that `Tokenizer` does not have: the value
that describes what `Tokenizer` does, which is accepted, and a remedy for other values."""


class IncrementalDetokenizer:
    """A decoder of tokens that are added one at a time. It never returns half a character.

    A byte-level token is a sequence of bytes, and the bytes of a character may belong to several
    tokens. Bytes are held back until they form a character, or are invalid as the start of one. All
    results of `push` and `finish` together equal the decoding of all tokens at once.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """Start an empty text.

        Args:
            token_bytes: returns the bytes of a token; b"" for a hidden token.
        """
        self._token_bytes = token_bytes
        # As `tokenizers` does, one U+FFFD stands for each maximal subpart of a broken sequence
        # (the Unicode Standard, section 3.9, "U+FFFD substitution of maximal subparts").
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that is complete with `token`; empty while a character is incomplete."""
        return self._decoder.decode(self._token_bytes(token))

    def finish(self) -> str:
        """End the text, and return U+FFFD if a character is incomplete.

        The next `push` starts a new text.
        """
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


class Tokenizer:
    """A byte-level BPE tokenizer with its special tokens and chat template.

    Attributes:
        eos_token_ids: the tokens that end an answer, collected from all files of the checkpoint.
        bos_token_id: the token at the start of a text; None for Qwen.
        special_token_ids: control tokens, which are not text: the added tokens that the files mark
            as special. The end tokens of Qwen are among them.
        chat_template: the chat template; None if the checkpoint has none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        bos_token_id: int | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        """Wrap a byte-level tokenizer. `from_folder` reads the arguments from a checkpoint."""
        self.eos_token_ids = eos_token_ids
        self.bos_token_id = bos_token_id
        self.chat_template = chat_template
        self._backend = backend
        self._encoder = TextEncoder(backend)
        self._added_tokens = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(
            index for index, token in self._added_tokens.items() if token.special
        )

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences about what the checkpoint lacks, for the user."""
        if self.eos_token_ids:
            return ()
        return ("this checkpoint names no end token (eos_token_id): only the limit ends an answer",)

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read the tokenizer of the checkpoint in `folder`.

        Raises:
            CheckpointError: if a file is missing or broken, or the tokenizer is not byte-level.
        """
        backend = read_backend(folder)
        named = read_named_tokens(folder, backend)
        eos = backend.token_to_id(named.get("eos_token", ""))
        ids = set() if eos is None else {eos}
        for name in ("config.json", "generation_config.json"):
            fields = read_fields(folder / name)
            for table in (fields, fields.nested("text_config")):
                ids.update(table.integers("eos_token_id", 0, MAX_TOKEN_ID))
        return cls(
            backend,
            eos_token_ids=frozenset(ids),
            bos_token_id=backend.token_to_id(named.get("bos_token", "")),
            chat_template=ChatTemplate.from_folder(folder, named),
        )

    @cached_property
    def vocab_size(self) -> int:
        """The largest id plus one, added tokens included. An embedding may have more rows."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(
        self, text: str, *, add_special_tokens: bool = False, max_tokens: int | None = None
    ) -> list[int]:
        """Return the token ids of `text`.

        As in Hugging Face's implementation, the name of a special token in `text` becomes that
        token, also in untrusted text. Use `chat_prompt` for untrusted messages. A surrogate pair is
        one character. A lone surrogate, which UTF-8 cannot encode, becomes U+FFFD.

        Args:
            text: any text.
            add_special_tokens: True to add the special tokens that tokenizer.json puts around a
                text. Qwen's text models have none. Qwen3-Embedding has an end token.
            max_tokens: the most tokens. A longer text is refused after so many tokens, and at once
                if its length alone shows that it has more.

        Raises:
            TextTooLongError: if the text has more than `max_tokens` tokens.
            CheckpointError: if the pattern that splits texts into words fails on this text.
        """
        return self._encoder.encode(
            text, add_special_tokens=add_special_tokens, max_tokens=max_tokens
        )

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`. Invalid UTF-8 becomes U+FFFD. Unassigned ids have no text."""
        ids, parts, start = list(ids), [], 0
        while start < len(ids):
            end = start + _DECODED_AT_ONCE
            while end < len(ids) and not self._starts_character(ids[end]):
                end += 1
            parts.append(
                self._backend.decode(ids[start:end], skip_special_tokens=skip_special_tokens)
            )
            start = end
        return "".join(parts)

    def _starts_character(self, token: int) -> bool:
        """Return True if no character before `token` can continue in it."""
        start = self.token_bytes(token)[:1]
        return start != b"" and start.isascii() and token not in self.special_token_ids

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of `token`. The bytes of a special token are its name in UTF-8.

        An unassigned id has no bytes. Embeddings often have rows for unassigned ids, as padding.
        """
        text = self._backend.id_to_token(token)
        if text is None:
            return b""
        try:
            return bytes(_BYTE_OF_CHARACTER[character] for character in text)
        except KeyError:  # an added token is not in the alphabet; `decode` has the same rule
            return text.encode()

    def special_token_id(self, name: str) -> int | None:
        """Return the id of the special token with a name, such as <|im_end|>, or None."""
        token = self._backend.token_to_id(name)
        return token if token in self.special_token_ids else None

    def stream(self, *, skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        """Make a detokenizer that returns the text of `decode` token by token."""
        hidden = self.special_token_ids if skip_special_tokens else frozenset[int]()
        return IncrementalDetokenizer(
            lambda token: b"" if token in hidden else self.token_bytes(token)
        )

    def chat_prompt(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, object] | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        allow_special_tokens: bool = False,
    ) -> ChatPrompt:
        """Render the prompt for untrusted `messages`; only the template can write added tokens.

        Text of a message, a tool or a variable that looks like an added token, such as
        `<|im_end|>`, is encoded as text. In the content of an assistant's turn, added tokens that
        the template mentions and that are not special, such as `<think>`, stay tokens.

        Args:
            messages: the conversation, at least one turn. The text parts of a content that is a
                list are joined.
            variables: variables of the template, such as `enable_thinking`, for which None is the
                default of the template.
            tools: JSON schemas of the functions that the model may call.
            add_generation_prompt: True to end the prompt with the start of the assistant's turn.
            allow_special_tokens: True to encode as Hugging Face does: added tokens in any text of
                the conversation become those tokens.

        Raises:
            ValueError: if there are no messages, a value is not of a JSON type, or a part of a
                content is not text.
            TemplateError: if the template refuses the messages, or there is no template.
            CheckpointError: if the template is broken, exceeds its limits, or attempts to access
                Python's internals.
        """
        if self.chat_template is None:
            raise TemplateError(
                "this checkpoint has no chat template: use an instruct model, or encode the text"
            )
        messages, variables = text_messages(messages), dict(variables or {})
        if variables.get("enable_thinking", True) is None:
            del variables["enable_thinking"]
        marks = None if allow_special_tokens else self._marks
        text = self.chat_template.render(
            messages,
            variables,
            marks,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
        )
        if marks is None:
            return ChatPrompt(text, text, lambda text, limit: self.encode(text, max_tokens=limit))
        return ChatPrompt(marks.unmark(text), text, self._encode_marked)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, object]] | None = None,
        add_generation_prompt: bool = True,
        allow_special_tokens: bool = False,
        **variables: object,
    ) -> list[int]:
        """Return the token ids of `chat_prompt`, with the same arguments and errors.

        Raises:
            ValueError: also for an argument of Hugging Face's method of this name that has no
                effect here, such as `tokenize=False`.
            TemplateError: also if the template ignores `tools`.
        """
        for name, (expected, remedy) in _OTHER_ARGUMENTS.items():
            value = variables.pop(name, None)
            if value is not None and value is not expected:
                raise ValueError(f"{name}: expected {expected}, got {show(value)}: {remedy}")
        messages = text_messages(messages)  # may be rendered twice

        def render(tools: Sequence[dict[str, object]] | None) -> ChatPrompt:
            return self.chat_prompt(
                messages,
                variables,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                allow_special_tokens=allow_special_tokens,
            )

        prompt = render(tools)
        if tools and not self.shows_tools and prompt.marked == render(None).marked:
            raise TemplateError(
                "tools: expected none, this model's chat template ignores them: leave them out"
            )
        return prompt.encode()

    @cached_property
    def shows_tools(self) -> bool:
        """True if the chat template shows a tool to the model, in a short conversation."""
        turns = [{"role": "user", "content": "?"}]
        tool = {"type": "function", "function": {"name": "f", "description": "?", "parameters": {}}}
        try:
            shown, hidden = (self.chat_prompt(turns, tools=tools) for tools in ([tool], None))
        except (TemplateError, CheckpointError):  # the template asks for another conversation
            return False
        return shown.marked != hidden.marked

    @cached_property
    def _marks(self) -> TokenMarks:
        """Marks of the added tokens that the chat template mentions."""
        template = self.chat_template
        added = [
            token
            for token in self._added_tokens.values()
            if template is not None and template.mentions(token.content)
        ]
        answer_tokens = {token.content for token in added if not token.special}
        return TokenMarks([token.content for token in added], answer_tokens)

    @cached_property
    def _plain_encoder(self) -> TextEncoder:
        """An encoder without added tokens, which shares the vocabulary."""
        backend = tokenizers.Tokenizer(self._backend.model)
        if self._backend.normalizer is not None:
            backend.normalizer = self._backend.normalizer
        if self._backend.pre_tokenizer is not None:
            backend.pre_tokenizer = self._backend.pre_tokenizer
        return TextEncoder(backend)

    def _encode_marked(self, text: str, max_tokens: int | None) -> list[int]:
        """Encode a text with marks: each mark as its token, and the text between as plain text."""
        added = {token.content: (index, token) for index, token in self._added_tokens.items()}
        ids: list[int] = []
        after_rstrip = False
        for before, name in self._marks.split(text):
            index, token = added.get(name, (None, None))
            part = before.lstrip() if after_rstrip else before
            part = part.rstrip() if token is not None and token.lstrip else part
            if part:
                ids += self._plain_encoder.encode(part, max_tokens=max_tokens, earlier=len(ids))
            if index is not None:
                ids.append(index)
            after_rstrip = token is not None and token.rstrip
            check_count(len(ids), max_tokens)
        return ids
