"""Tokenizer compared with transformers: golden files of tools/goldens/chat_templates.py."""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_qwen.errors import CheckpointError, TemplateError, TextTooLongError
from tinyllm_qwen.text.tokenizer import Tokenizer

GOLDENS = Path(__file__).parents[1] / "goldens"
ANSWERS = json.loads((GOLDENS / "chat_templates.json").read_text())
FAMILIES = ("qwen25", "qwen3", "qwen35")
TOKENIZERS = {family: Tokenizer.from_folder(GOLDENS / family) for family in FAMILIES}
QWEN3 = TOKENIZERS["qwen3"]

each_text = pytest.mark.parametrize(
    ("family", "case"),
    [
        pytest.param(family, case, id=f"{family}-{case['text'][:20]!a}")
        for family in FAMILIES
        for case in ANSWERS[family]["texts"]
    ],
)
each_chat = pytest.mark.parametrize(
    ("family", "case"),
    [
        pytest.param(family, case, id=f"{family}-{case['conversation']}-{'-'.join(case['given'])}")
        for family in FAMILIES
        for case in ANSWERS[family]["chats"]
    ],
)


@each_text
def test_text_has_the_ids_that_transformers_gives_it(family: str, case: dict[str, Any]) -> None:
    assert TOKENIZERS[family].encode(case["text"]) == case["ids"]


@each_text
def test_ids_have_the_text_that_transformers_gives_them(family: str, case: dict[str, Any]) -> None:
    tokenizer = TOKENIZERS[family]
    assert tokenizer.decode(case["ids"], skip_special_tokens=False) == case["decoded"]
    assert tokenizer.decode(case["ids"]) == case["spoken"]


@each_chat
def test_a_conversation_is_rendered_as_transformers_renders_it(
    family: str, case: dict[str, Any]
) -> None:
    messages = ANSWERS["conversations"][case["conversation"]]
    tokenizer = TOKENIZERS[family]
    allowed = tokenizer.chat_prompt(messages, **split(case["given"]), allow_special_tokens=True)
    assert allowed.text == case["prompt"]
    assert allowed.encode() == case["ids"]
    if case["conversation"] != "special tokens in what a user says":
        assert tokenizer.chat_prompt(messages, **split(case["given"])).text == case["prompt"]
        assert tokenizer.apply_chat_template(messages, **case["given"]) == case["ids"]


def split(given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `apply_chat_template` as arguments of `chat_prompt`."""
    own = ("tools", "add_generation_prompt")
    variables = {name: value for name, value in given.items() if name not in own}
    return {"variables": variables} | {name: given[name] for name in own if name in given}


def test_a_special_token_in_a_text_is_that_token() -> None:
    [end] = QWEN3.eos_token_ids
    assert QWEN3.encode("<|im_end|>") == [end]


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc80", "\ufffd"),
        ("\ud83d\ude42!", "🙂!"),
        ("\ude42\ud83d", "\ufffd\ufffd"),
        ("日\udcff", "日\ufffd"),
    ],
    ids=ascii,
)
def test_lone_surrogates_are_replaced_and_pairs_joined(broken: str, mended: str) -> None:
    assert QWEN3.encode(broken) == QWEN3.encode(mended)


@given(st.lists(st.integers(0, QWEN3.vocab_size + 9), max_size=40), st.booleans())
def test_a_stream_equals_decoding_at_once(ids: list[int], skip: bool) -> None:
    stream = QWEN3.stream(skip_special_tokens=skip)
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.finish() == QWEN3.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=12))
def test_any_bytes_as_tokens_decode_as_the_library_decodes_them(data: list[int]) -> None:
    token_of = {QWEN3.token_bytes(token): token for token in range(QWEN3.vocab_size)}
    ids = [token_of[bytes([byte])] for byte in data]
    stream = QWEN3.stream()
    assert "".join(map(stream.push, ids)) + stream.finish() == QWEN3.decode(ids)


@pytest.mark.parametrize("text", ["é日🙂 x\n", "<|im_start|><think>", ""])
def test_the_bytes_of_a_texts_tokens_are_the_texts(text: str) -> None:
    assert b"".join(map(QWEN3.token_bytes, QWEN3.encode(text))) == text.encode()


def test_an_unassigned_id_has_no_text() -> None:
    assert QWEN3.token_bytes(QWEN3.vocab_size) == b""
    assert QWEN3.decode([QWEN3.vocab_size]) == ""


def test_the_vocabulary_counts_added_tokens() -> None:
    [last] = QWEN3.encode("</think>")
    assert QWEN3.vocab_size == last + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDENS / "qwen3", tmp_path / "model"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text()) if path.exists() else {}
    change(value)
    path.write_text(json.dumps(value))


def test_end_tokens_are_the_union_of_all_files(folder: Path) -> None:
    edit(folder / "config.json", lambda values: values.update(eos_token_id=3))
    edit(folder / "generation_config.json", lambda values: values.update(eos_token_id=[5, 7]))
    [end] = QWEN3.encode("<|im_end|>")
    assert Tokenizer.from_folder(folder).eos_token_ids == {3, 5, 7, end}


def test_an_end_token_of_the_map_of_special_tokens_alone_is_read(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", lambda values: values.pop("eos_token"))
    without = Tokenizer.from_folder(folder)
    assert without.eos_token_ids == frozenset()
    [notice] = without.notices
    assert "no end token" in notice
    end = {"content": "<|im_end|>", "special": True}
    edit(folder / "special_tokens_map.json", lambda values: values.update(eos_token=end))
    whole = Tokenizer.from_folder(folder)
    assert (whole.eos_token_ids, whole.notices) == (QWEN3.eos_token_ids, ())


def test_tokens_that_only_templates_name_need_not_exist(folder: Path) -> None:
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    edit(folder / "tokenizer_config.json", lambda values: values.update(named))
    assert Tokenizer.from_folder(folder).eos_token_ids == QWEN3.eos_token_ids


def test_a_named_token_may_be_an_object(folder: Path) -> None:
    start = {"content": "<|im_start|>", "special": True}
    edit(folder / "tokenizer_config.json", lambda values: values.update(bos_token=start))
    assert [Tokenizer.from_folder(folder).bos_token_id] == QWEN3.encode("<|im_start|>")


def test_a_token_that_only_the_config_adds_is_added(folder: Path) -> None:
    added = {"content": "<|extra|>", "special": True}
    entry = {str(QWEN3.vocab_size): added}
    edit(
        folder / "tokenizer_config.json",
        lambda values: values["added_tokens_decoder"].update(entry),
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("a<|extra|>") == [*QWEN3.encode("a"), QWEN3.vocab_size]
    assert tokenizer.decode([QWEN3.vocab_size]) == ""


def test_truncation_and_padding_of_the_saved_run_are_dropped(folder: Path) -> None:
    padding = {
        "strategy": {"Fixed": 16},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    edit(folder / "tokenizer.json", lambda values: values.update(padding=padding, truncation=cut))
    text = "more than two tokens, far fewer than would fill it"
    assert Tokenizer.from_folder(folder).encode(text) == QWEN3.encode(text)
    assert Tokenizer.from_folder(folder).encode("a") == QWEN3.encode("a")


def save_template(folder: Path, single: str) -> tokenizers.Tokenizer:
    """Give the tokenizer a post-processor, and return it."""
    path = str(folder / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(path)
    names = [("<|endoftext|>", backend.token_to_id("<|endoftext|>"))]
    template = tokenizers.processors.TemplateProcessing(single=single, special_tokens=names)
    backend.post_processor = template
    backend.save(path)
    return backend


@pytest.mark.parametrize("text", ["", "hello world", "a <|endoftext|>", "some words " * 3000])
def test_special_tokens_are_put_around_a_text(folder: Path, text: str) -> None:
    # Qwen3-Embedding appends <|endoftext|>, and pools at its hidden state.
    backend = save_template(folder, "<|endoftext|> $A <|endoftext|> <|endoftext|>")
    tokenizer = Tokenizer.from_folder(folder)
    expected = backend.encode(text).ids
    count = len(expected)
    assert tokenizer.encode(text, add_special_tokens=True, max_tokens=count) == expected
    assert tokenizer.encode(text) == expected[1:-2]
    with pytest.raises(TextTooLongError):
        tokenizer.encode(text, add_special_tokens=True, max_tokens=count - 1)


def test_a_template_with_tokens_inside_the_text_is_refused(folder: Path) -> None:
    save_template(folder, "$A <|endoftext|> $A")
    tokenizer = Tokenizer.from_folder(folder)
    with pytest.raises(CheckpointError, match="expected a post_processor that adds tokens around"):
        tokenizer.encode("a", add_special_tokens=True)


def test_a_tokenizer_alone_is_enough_for_text(folder: Path) -> None:
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode("text")) == "text"
    assert tokenizer.eos_token_ids == frozenset()
    with pytest.raises(TemplateError, match="instruct model"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tokenizer.json", lambda v: v.update(model={}), "download it again"),
        ("tokenizer.json", lambda v: v.update(decoder={"type": "Fuse"}), "ByteLevel"),
        ("tokenizer_config.json", lambda v: v.update(eos_token="<|none|>"), "eos_token"),
        ("tokenizer_config.json", lambda v: v.update(eos_token=7), "eos_token"),
        ("tokenizer_config.json", lambda v: v.update(added_tokens_decoder=[]), "an object"),
        ("tokenizer_config.json", lambda v: v["added_tokens_decoder"].update(x={}), "'x'"),
        ("tokenizer_config.json", lambda v: v["added_tokens_decoder"].update({"9": 1}), "under 9"),
        (
            "tokenizer_config.json",
            lambda v: v["added_tokens_decoder"].update({"999": {"content": "<|far|>"}}),
            "one checkpoint",
        ),
        ("config.json", lambda v: v.update(eos_token_id="2"), "eos_token_id"),
        ("config.json", lambda v: v.update(eos_token_id=[True]), "eos_token_id"),
    ],
)
def test_a_broken_file_is_named(
    folder: Path, name: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(folder / name, change)
    with pytest.raises(CheckpointError, match=message) as caught:
        Tokenizer.from_folder(folder)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [-1, 2**31, 10**400, 1.0, math.nan, math.inf, "2", True, {}, ["a"], [2, None], [math.inf]],
)
def test_an_end_token_that_is_no_id_is_named(folder: Path, value: object) -> None:
    edit(folder / "generation_config.json", lambda values: values.update(eos_token_id=value))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id: expected"):
        Tokenizer.from_folder(folder)


def test_a_missing_tokenizer_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing.*save_pretrained"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_is_not_json_is_named(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=name):
        Tokenizer.from_folder(folder)


def test_reading_a_tokenizer_imports_neither_jinja2_nor_transformers() -> None:
    program = (
        "import sys; from pathlib import Path; from tinyllm_qwen.text.tokenizer import Tokenizer;"
        f"Tokenizer.from_folder(Path({str(GOLDENS / 'qwen3')!r})).encode('a');"
        "print({'jinja2', 'transformers', 'huggingface_hub'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\n"
