"""Hostile tokenizer files are refused before the tokenizers library, which some would crash."""

import copy
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.loader import load
from tinyllm_qwen.text.tokenizer import Tokenizer

PICO = Path(__file__).parents[2] / "src" / "tinyllm_qwen" / "pico"
GOOD = json.loads((PICO / "tokenizer.json").read_text())
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PICO, tmp_path / "m"))


def spoil(folder: Path, change: Change) -> Path:
    document = copy.deepcopy(GOOD)
    change(document)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def pattern(text: str) -> Change:
    return lambda d: d["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": text})


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}
TEN_TO_THE_TWELVE = {"type": "Sequence", "normalizers": [REPLACE] * 12}
ONCE_MORE = {"Sequence": {"id": "A", "type_id": 0}}
TEMPLATE = {"type": "TemplateProcessing", "single": [ONCE_MORE] * 99, "pair": []}
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(normalizer=TEN_TO_THE_TWELVE), "normalizer: .*NFC.*'Replace'"),
        (lambda d: d.update(normalizer={"type": "Prepend", "prepend": "a" * 9999}), "'Prepend'"),
        (
            lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "////"}),
            "'Precompiled'",
        ),
        (
            lambda d: d.update(
                normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 99}
            ),
            "normalizer: expected at most 16 parts",
        ),
        (lambda d: d.update(normalizer=7), "normalizer: .*got 7"),
        (lambda d: d.update(pre_tokenizer={"type": "FixedLength", "length": 0}), "'FixedLength'"),
        (pattern("(a+)+$"), "without repeated groups"),
        (pattern("(a|aa){2,}"), "without repeated groups"),
        (pattern("(?#[)(a+)+(?#])"), "without comments"),
        (pattern(r"(?<x>a\g<x>?b)"), "without comments and calls"),
        (pattern("a" * 9999), "at most 2000 characters"),
        (pattern("(" * 1000), "download it again"),
        (lambda d: d.update(post_processor=TEMPLATE), "single: expected at most 16 pieces"),
        (lambda d: d.update(post_processor={"type": "BertProcessing"}), "'BertProcessing'"),
        (lambda d: d.update(model=UNIGRAM), "model.type: expected BPE, got 'Unigram'"),
        (lambda d: d.update(model=[]), "model: expected a BPE model"),
        (lambda d: d["model"].update(continuing_subword_prefix="#" * 15), "subword_prefix"),
        (lambda d: d["model"].update(end_of_word_suffix="é"), "end_of_word_suffix"),
        (lambda d: d["model"].update(dropout=0.5), "model.dropout: expected none"),
        (lambda d: d["model"].update(unk_token="nope"), "model.unk_token"),
        (lambda d: d["model"]["vocab"].update(zz=-1), "token id from 0 .* got -1"),
        (lambda d: d["model"]["vocab"].update(zz=1 << 32), "token id .* got 4294967296"),
        (lambda d: d["model"]["vocab"].update(zz="1"), "token id .* got '1'"),
        (lambda d: d["model"]["vocab"].update(zz=5), "an id of its own"),
        (lambda d: d["model"]["merges"].append(["qq", "zz"]), "out of vocabulary"),
        (lambda d: d["model"].update(vocab=[]), "model.vocab"),
        (lambda d: d.update(added_tokens=[{}] * 100_001), "added_tokens: expected at most 100000"),
    ],
    ids=range(27),
)
def test_parts_that_would_crash_the_library_are_refused(
    folder: Path, change: Change, message: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json: .*{message}"):
        Tokenizer.from_folder(spoil(folder, change))


@pytest.mark.parametrize(
    "data",
    [b'{"model":' + b"[" * 1_000_000, b'{"x":[' + b"[]," * 5_000_000 + b"[]]}", b'{"a":1,"a":2}'],
    ids=range(3),
)
def test_json_that_is_deep_or_long_is_refused(folder: Path, data: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json.*(nested|values|twice)"):
        Tokenizer.from_folder(folder)


def test_a_file_of_gigabytes_is_refused_without_reading_it(folder: Path) -> None:
    with (folder / "tokenizer.json").open("wb") as file:
        file.truncate(5_000_000_000)
    with pytest.raises(CheckpointError, match="at most 100000000 bytes, got 5000000000"):
        Tokenizer.from_folder(folder)


def test_a_pattern_that_gives_up_on_a_text_is_an_error_not_a_panic(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(spoil(folder, pattern(r"\s*\s*\s*\s*$")))
    with pytest.raises(CheckpointError, match=r"gives up on this text .*retry-limit"):
        tokenizer.encode(" " * 3000 + "a")


def test_a_vocabulary_larger_than_the_embedding_is_refused(folder: Path) -> None:
    spoil(folder, lambda d: d["model"]["vocab"].update(zz=2_000_000_000))
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointError, match="2000000001 tokens, the embedding 2048 rows"):
        load(folder)


def test_tokens_that_the_config_adds_beyond_the_embedding_are_refused(folder: Path) -> None:
    table = json.loads((folder / "tokenizer_config.json").read_text())
    size = Tokenizer.from_folder(folder).vocab_size
    table["added_tokens_decoder"] = {str(size): {"content": "<|one too many|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match="2049 tokens, the embedding 2048 rows"):
        load(folder)


def test_thousands_of_added_tokens_take_seconds_at_most(folder: Path) -> None:
    size = Tokenizer.from_folder(folder).vocab_size
    table = {str(size + i): {"content": f"<|{i}|>"} for i in range(20_000)}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": table}))
    start = time.thread_time()
    assert Tokenizer.from_folder(folder).vocab_size == size + 20_000
    assert time.thread_time() - start < 20


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({str(i): {"content": str(i)} for i in range(100_001)}, "at most 100000 tokens"),
        ({"1": {"content": "<x>"}, "2": {"content": "<x>"}}, "'<x>' under one id"),
        ({"-1": {"content": "<x>"}}, "token ids for keys"),
        ({"9" * 20: {"content": "<x>"}}, "token ids for keys"),
        ({"999999999": {"content": "<x>"}}, "expected id 2048"),
        ({"7": {"content": "\x1b[2J"}}, r"'\\x1b\[2J'"),
    ],
    ids=range(6),
)
def test_added_tokens_that_make_no_sense_are_refused(
    folder: Path, table: dict[str, object], message: str
) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": table}))
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_folder(folder)


def test_the_library_still_needs_the_rules() -> None:
    """The tokenizers library still panics on a file that our own checks refuse."""
    document = GOOD | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "////f///"}}
    program = "import sys, tokenizers; tokenizers.Tokenizer.from_str(sys.stdin.read())"
    result = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(document),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "panicked" in result.stderr
