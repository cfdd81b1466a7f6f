"""The files that describe a tokenizer: tokenizer.json and what tokenizer_config.json adds to it."""

from pathlib import Path

import tokenizers
from tokenizers.decoders import ByteLevel

from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.fields import Fields
from tinyllm_qwen.json_object import read_json_object

CONFIG = "tokenizer_config.json"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_backend(folder: Path) -> tokenizers.Tokenizer:
    """Read tokenizer.json, and the tokens that tokenizer_config.json adds.

    Raises:
        CheckpointError: if a file is missing, broken or at odds with the other, or the tokenizer
            is not byte-level.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise CheckpointError(
            f"{path} is missing: download it, or write it from the older files with"
            " transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises this very class
        raise CheckpointError(
            f"{path}: not a file that tokenizers {tokenizers.__version__} can read ({error}):"
            " download it again"
        ) from None
    if not isinstance(backend.decoder, ByteLevel):
        raise CheckpointError(
            f"{path}: expected a ByteLevel decoder, which every Qwen has, got {backend.decoder}"
        )
    # As transformers does: a file may carry the settings of the run that saved it.
    backend.no_truncation()
    backend.no_padding()
    _add_tokens(backend, folder / CONFIG)
    return backend


def read_named_tokens(folder: Path, backend: tokenizers.Tokenizer) -> dict[str, str]:
    """The texts of the tokens that tokenizer_config.json names, by names such as "eos_token".

    Raises:
        CheckpointError: if one of them is not a token of `backend`.
    """
    fields = _fields(folder / CONFIG)
    named: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = fields.raw(name)
        if isinstance(value, dict):  # a description of the token
            value = value.get("content")
        if value is None:
            continue
        if not isinstance(value, str) or backend.token_to_id(value) is None:
            raise fields.error(name, "a token of tokenizer.json")
        named[name] = value
    return named


def _add_tokens(backend: tokenizers.Tokenizer, path: Path) -> None:
    fields = _fields(path)
    table = fields.table("added_tokens_decoder") or {}
    for key in table:
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise fields.error("added_tokens_decoder", f"token ids for keys (not {key[:20]!r})")
    for index, value in sorted(
        ((int(key), value) for key, value in table.items()), key=lambda item: item[0]
    ):
        content = value.get("content") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(content, str) or not content:
            raise fields.error("added_tokens_decoder", f"a token with content under {index}")
        if backend.token_to_id(content) is None:
            flags = {name: value[name] is True for name in _FLAGS if name in value}
            backend.add_tokens([tokenizers.AddedToken(content, **flags)])
        if backend.token_to_id(content) != index:
            raise CheckpointError(
                f"{path}: token {content!r}: expected id {backend.token_to_id(content)}, which"
                f" tokenizer.json leads to, got {index}: take both files from one checkpoint"
            )


def _fields(path: Path) -> Fields:
    return Fields(read_json_object(path) if path.exists() else {}, str(path))
