"""A reader of the files of a tokenizer: tokenizer.json and tokenizer_config.json."""

from pathlib import Path

import tokenizers
from tokenizers.decoders import ByteLevel

from tinyllm_qwen.config.fields import show
from tinyllm_qwen.config.json_object import MAX_BYTES, parse_json_object, read_fields
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.regular_file import exists_or_broken_link, read_regular_file
from tinyllm_qwen.text.tokenizer_rules import MAX_ADDED_TOKENS, check_tokenizer

CONFIG = "tokenizer_config.json"  # defines added tokens, named tokens and the chat template
MAX_VALUES = 4_000_000  # limit for tokenizer.json; a vocabulary of 150,000 tokens has 600,000
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_backend(folder: Path) -> tokenizers.Tokenizer:
    """Read tokenizer.json, and the tokens that tokenizer_config.json adds.

    Raises:
        CheckpointError: if a file is missing or broken, the two files contradict each other, or the
            tokenizer is not byte-level.
    """
    path = folder / "tokenizer.json"
    if not exists_or_broken_link(path):
        raise CheckpointError(
            f"{path} is missing: download it, or write it from the older files with"
            " transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    data = read_regular_file(path, MAX_BYTES)
    check_tokenizer(parse_json_object(data, str(path), MAX_VALUES), str(path))
    try:
        backend = tokenizers.Tokenizer.from_buffer(data)
    except BaseException as error:
        # The library raises Exception itself, or, after a panic, a BaseException.
        if not isinstance(error, Exception) and not has_panicked(error):
            raise
        raise CheckpointError(
            f"{path}: not a file that tokenizers {tokenizers.__version__} can read "
            f"({str(error)[:200]}): download it again"
        ) from None
    if not isinstance(backend.decoder, ByteLevel):
        raise CheckpointError(
            f"{path}: expected a ByteLevel decoder, which every Qwen has, got "
            f"{str(backend.decoder)[:200]}: take the file of the original model"
        )
    # Turn truncation and padding off, as transformers does: a file may have the settings of a
    # training run.
    backend.no_truncation()
    backend.no_padding()
    _add_tokens(backend, folder / CONFIG)
    return backend


def has_panicked(error: BaseException) -> bool:
    """Return True if `error` is a panic: an unexpected error in the Rust code of the library."""
    return type(error).__name__ == "PanicException"


def read_named_tokens(folder: Path, backend: tokenizers.Tokenizer) -> dict[str, str]:
    """Return the named tokens of the tokenizer, as texts by names such as "eos_token".

    They are in tokenizer_config.json, or in older checkpoints in special_tokens_map.json alone.

    Raises:
        CheckpointError: if the first or the last token of a text is not a token of `backend`.
    """
    tables = [read_fields(folder / name) for name in (CONFIG, "special_tokens_map.json")]
    named: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        fields = next((table for table in tables if table.raw(name) is not None), tables[0])
        value = fields.raw(name)
        if isinstance(value, dict):  # an object that describes the token
            value = value.get("content")
        if value is None:
            continue
        if not isinstance(value, str):
            raise fields.error(name, "a string")
        if name in ("bos_token", "eos_token") and backend.token_to_id(value) is None:
            raise fields.error(name, "a token of tokenizer.json")
        named[name] = value
    return named


def _add_tokens(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Add the tokens of `added_tokens_decoder`; refuse ids that differ from those of `backend`."""
    fields = read_fields(path)
    table = fields.table("added_tokens_decoder") or {}
    for key in table:
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise fields.error("added_tokens_decoder", f"token ids for keys (not {key[:20]!r})")
    if len(table) > MAX_ADDED_TOKENS:
        raise fields.error("added_tokens_decoder", f"at most {MAX_ADDED_TOKENS} tokens")
    ids: dict[str, int] = {}
    new: list[tokenizers.AddedToken] = []
    for token_id, value in sorted(
        ((int(key), value) for key, value in table.items()), key=lambda item: item[0]
    ):
        content = value.get("content") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(content, str) or not content:
            raise fields.error("added_tokens_decoder", f"a token with content under {token_id}")
        if backend.token_to_id(content) is None:
            flags = {name: value[name] is True for name in _FLAGS if name in value}
            new.append(tokenizers.AddedToken(content, **flags))
        if content in ids:
            raise fields.error("added_tokens_decoder", f"{show(content)} under one id")
        ids[content] = token_id
    backend.add_tokens(new)  # in one call, because each call sorts all tokens
    for content, token_id in ids.items():
        if backend.token_to_id(content) != token_id:
            raise CheckpointError(
                f"{path}: token {show(content)}: expected id {backend.token_to_id(content)}, as"
                f" tokenizer.json has, got {token_id}: take both files from one checkpoint"
            )
