"""Checks of a tokenizer.json: only components of Qwen's tokenizers, in limited numbers.

The library `tokenizers` was written for trusted files. Some components, which no Qwen has, can end
the whole process. Other components can repeat a text without limit.
"""

import re
from collections.abc import Callable, Mapping

from tinyllm_qwen.config.fields import show
from tinyllm_qwen.errors import CheckpointError

MAX_ADDED_TOKENS = 100_000  # Qwen has 26
_MAX_PARTS = 16
_MAX_PATTERN = 2000  # characters; Qwen's pattern has 130

_NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_SPLITTERS = frozenset({"ByteLevel", "Digits", "Split"})
_FRAMES = frozenset({"ByteLevel", "TemplateProcessing"})

Part = Mapping[str, object]


def check_tokenizer(document: Part, source: str) -> None:
    """Refuse components that can crash the library, or that no byte-level tokenizer needs.

    Args:
        document: the decoded tokenizer.json.
        source: the name of the file for error messages.

    Raises:
        CheckpointError: if a component is refused. The message names the component.
    """

    def refuse(component: str, expected: str, value: object) -> CheckpointError:
        return CheckpointError(
            f"{source}: {component}: expected {expected}, got {show(value)}: download it again, or "
            "take that of the original model"
        )

    def check_parts(component: str, known: frozenset[str], list_name: str) -> list[Part]:
        parts = _parts(document.get(component), list_name)
        for part in parts:
            if not isinstance(part, dict) or part.get("type") not in known:
                kind = part.get("type") if isinstance(part, dict) else part
                raise refuse(component, f"none, or one of {', '.join(sorted(known))}", kind)
        if len(parts) > _MAX_PARTS:
            raise refuse(component, f"at most {_MAX_PARTS} parts", parts)
        return [part for part in parts if isinstance(part, dict)]

    check_parts("normalizer", _NORMALIZERS, "normalizers")
    for part in check_parts("pre_tokenizer", _SPLITTERS, "pretokenizers"):
        _check_pattern(part.get("pattern"), refuse)
    for part in check_parts("post_processor", _FRAMES, "processors"):
        for name in ("single", "pair"):
            pieces = part.get(name)
            if isinstance(pieces, list) and len(pieces) > _MAX_PARTS:
                raise refuse(f"post_processor.{name}", f"at most {_MAX_PARTS} pieces", pieces)
    added = document.get("added_tokens")
    if isinstance(added, list) and len(added) > MAX_ADDED_TOKENS:
        raise refuse("added_tokens", f"at most {MAX_ADDED_TOKENS} tokens", added)
    model = document.get("model")
    if not isinstance(model, dict):
        raise refuse("model", "a BPE model", model)
    _check_model(model, refuse)


def _parts(value: object, list_name: str) -> list[object]:
    """Return the components of a "Sequence", without nesting, or a single component as a list."""
    if value is None:
        return []
    if isinstance(value, dict) and value.get("type") == "Sequence":
        parts = value.get(list_name)
        return parts if isinstance(parts, list) else [parts]
    return [value]


def _check_model(model: Part, refuse: Callable[[str, str, object], CheckpointError]) -> None:
    if model.get("type") not in ("BPE", None):
        raise refuse("model.type", "BPE", model.get("type"))
    # The library removes subword prefixes and suffixes without a check, and byte-level tokens have
    # neither. Dropout would make the encoding of a text random.
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(name) not in (None, "", 0):
            raise refuse(f"model.{name}", "none", model.get(name))
    vocab = model.get("vocab")
    if not isinstance(vocab, dict):
        raise refuse("model.vocab", "token ids by token", vocab)
    for token, index in vocab.items():
        if type(index) is not int or not 0 <= index < 1 << 31:
            raise refuse(f"model.vocab[{show(token)}]", "a token id from 0 to 2147483647", index)
    if len(set(vocab.values())) != len(vocab):
        raise refuse("model.vocab", "an id of its own for every token", vocab)
    unknown = model.get("unk_token")
    if unknown is not None and (not isinstance(unknown, str) or unknown not in vocab):
        raise refuse("model.unk_token", "none, or a token of the vocabulary", unknown)


def _check_pattern(pattern: object, refuse: Callable[[str, str, object], CheckpointError]) -> None:
    """Refuse repeated groups, because matching them can take exponential time."""
    text = pattern.get("Regex") if isinstance(pattern, dict) else None
    if not isinstance(text, str):
        return
    if len(text) > _MAX_PATTERN:
        raise refuse("pre_tokenizer.pattern", f"at most {_MAX_PATTERN} characters", text)
    if _HIDING.search(text):
        raise refuse("pre_tokenizer.pattern", "an expression without comments and calls", text)
    simplified = _CLASS.sub("x", _ESCAPED.sub("x", text))
    if _REPEATED_GROUP.search(simplified):
        raise refuse("pre_tokenizer.pattern", "an expression without repeated groups", text)


# Syntax that could hide a repeated group: comments, the extended mode, and calls of groups.
_HIDING = re.compile(r"\(\?#|\(\?[a-z-]*x|\\g")
_ESCAPED = re.compile(r"\\(?:[pP]\{[^}]*\}|.)", re.DOTALL)
_CLASS = re.compile(r"\[[^\]]*\]")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
