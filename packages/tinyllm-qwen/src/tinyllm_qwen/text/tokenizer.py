"""The tokenizer of a checkpoint, which converts text to token ids and token ids to text."""

import codecs
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from tinyllm_qwen.checkpoint.regular_file import exists_or_broken_link
from tinyllm_qwen.config.fields import Fields
from tinyllm_qwen.config.generation import MAX_TOKEN_ID
from tinyllm_qwen.config.json_object import read_json_object
from tinyllm_qwen.errors import CheckpointError, TemplateError
from tinyllm_qwen.text.chat_template import ChatTemplate, Message
from tinyllm_qwen.text.tokenizer_files import has_panicked, read_backend, read_named_tokens


def _byte_of_character() -> dict[str, int]:
    """Return the alphabet of byte-level BPE (GPT-2): the byte for which each character stands."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()


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
        special_token_ids: control tokens, which are not text. End tokens are included.
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
        self.special_token_ids = frozenset(
            token for token, added in backend.get_added_tokens_decoder().items() if added.special
        )

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
            path = folder / name
            if exists_or_broken_link(path):
                fields = Fields(read_json_object(path), str(path))
                ids.update(fields.integers("eos_token_id", 0, MAX_TOKEN_ID))
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

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of `text`.

        As in Hugging Face's implementation, the name of a special token in `text` becomes that
        token, also in untrusted text. A surrogate pair is one character. A lone surrogate, which
        UTF-8 cannot encode, becomes U+FFFD.

        Args:
            text: any text.
            add_special_tokens: True to add the special tokens that tokenizer.json puts around a
                text; Qwen has none.

        Raises:
            CheckpointError: if the pattern that splits texts into words fails on this text.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except BaseException as error:
            if not has_panicked(error):
                raise
            raise CheckpointError(
                f"tokenizer.json: its pattern gives up on this text ({str(error)[:200]}): take the "
                "tokenizer.json of the original model"
            ) from None

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`. Invalid UTF-8 becomes U+FFFD. Unassigned ids have no text."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

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

    def stream(self, *, skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        """Make a detokenizer that returns the text of `decode` token by token."""
        hidden = self.special_token_ids if skip_special_tokens else frozenset[int]()
        return IncrementalDetokenizer(
            lambda token: b"" if token in hidden else self.token_bytes(token)
        )

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, object]] | None = None,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        **template_kwargs: object,
    ) -> str:
        """Render the prompt for `messages` with the chat template.

        Args:
            messages: the conversation, at least one turn.
            tools: JSON schemas of the functions that the model may call.
            add_generation_prompt: True to end the prompt with the start of the assistant's turn.
            enable_thinking: True to let the model think first; None for the default of the
                template.
            template_kwargs: further variables of the template.

        Raises:
            TemplateError: if the template refuses the messages, or there is no template.
            CheckpointError: if the template is broken, exceeds its limits, or attempts to access
                Python's internals.
        """
        if self.chat_template is None:
            raise TemplateError(
                "this checkpoint has no chat template: use an instruct model, or encode the text"
            )
        if enable_thinking is not None:
            template_kwargs["enable_thinking"] = enable_thinking
        return self.chat_template.render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, **template_kwargs
        )

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, object]] | None = None,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        **template_kwargs: object,
    ) -> list[int]:
        """Return the token ids of `render_chat`, with the same arguments and errors."""
        return self.encode(
            self.render_chat(
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=enable_thinking,
                **template_kwargs,
            )
        )
