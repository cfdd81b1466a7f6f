"""Readers of checkpoint files return a value or raise a CheckpointError, for arbitrary bytes."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tinyllm_qwen.checkpoint.safetensors_file import read_header
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.checkpoint.shards import INDEX, find_shards
from tinyllm_qwen.checkpoint.weights import load_weights
from tinyllm_qwen.config.generation import GenerationConfig
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import CheckpointError, TemplateError
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.text.chat_template import ChatTemplate
from tinyllm_qwen.text.tokenizer import Tokenizer

pytestmark = pytest.mark.exhaustive

PICO = Path(__file__).parents[2] / "src" / "tinyllm_qwen" / "pico"
CONFIG = (PICO / "config.json").read_bytes()
GENERATION = (PICO / "generation_config.json").read_bytes()
TEMPLATE = str(json.loads((PICO / "tokenizer_config.json").read_bytes())["chat_template"])
TENSORS = {"a": mx.arange(6).reshape(2, 3), "b": mx.array(1.0), "c": mx.zeros((0, 2))}
VOCAB = {letter: i for i, letter in enumerate("abcdefgh")}
TOKENIZER = json.dumps(
    json.loads((PICO / "tokenizer.json").read_bytes())
    | {
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": VOCAB | {"ab": 8}, "merges": [["a", "b"]]},
    }
).encode()
TOKENIZER_CONFIG = json.dumps(
    {
        "added_tokens_decoder": {"9": {"content": "<|im_end|>", "special": True}},
        "eos_token": "<|im_end|>",
        "pad_token": {"content": "<|im_end|>"},
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
).encode()

# Derandomized: every run on every machine draws the same examples, at most 300 per test.
fuzz = settings(
    max_examples=300,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# JSON values and fragments that replace a part of a file.
tokens = st.sampled_from(
    [
        *(b"null", b"true", b"-1", b"0", b"1e400", b"-1e400", b"NaN", b"Infinity", b"1000000000"),
        *(b"18446744073709551616", b"9" * 5000, b'""', b'"\\ud800"', b'"\\u0000"', b"[]", b"{}"),
        *(b"[" * 2000, b'{"a":' * 2000, b"[[[]]]", b'"a', b"}", b",", b'"rope_scaling":', b"\xff"),
    ]
)


@st.composite
def mutations(draw: st.DrawFn, good: bytes, start: int = 0) -> bytes:
    """Replace, double or remove one to four byte ranges of `good`, and halve one file in five."""
    data = good
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(min(start, len(data)), len(data)))
        last = min(first + draw(st.sampled_from([0, 1, 1, 2, 4, 20])), len(data))
        new = draw(tokens | st.binary(max_size=3) | st.just(data[first:last] * 2))
        data = data[:first] + new + data[last:]
    return data[: draw(st.sampled_from([len(data)] * 4 + [len(data) // 2]))]


def swapped(good: bytes) -> st.SearchStrategy[bytes]:
    """Replace one top-level value of a JSON object. The result usually is valid JSON."""
    document = json.loads(good)
    return st.builds(
        lambda name, token: json.dumps(document | {name: "@"}).encode().replace(b'"@"', token),
        st.sampled_from(sorted(document)),
        tokens,
    )


def check(error: CheckpointError, *, printable: bool = False) -> None:
    """Check that the message is short and, if `printable`, has no control characters."""
    assert len(str(error)) < 2000
    assert not printable or str(error).isprintable()


@fuzz
@given(mutations(CONFIG) | swapped(CONFIG) | st.binary(max_size=60))
def test_any_config_is_a_config_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.json").write_bytes(data)
    try:
        config = QwenConfig.from_folder(tmp_path)
    except CheckpointError as error:
        check(error)
        return
    assert 0 < len(expected_shapes(config)) < 50_000
    assert config.context_length >= 1


def header_only(good: bytes) -> bytes:
    """Return the JSON header of a safetensors file, without the 8-byte length before it."""
    (size,) = struct.unpack("<Q", good[:8])
    return good[8 : 8 + size]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "model.safetensors"
    mx.save_safetensors(str(path), TENSORS, metadata={"format": "mlx"})
    return path.read_bytes()


@fuzz
@given(data=st.data())
def test_any_safetensors_file_is_read_as_mlx_reads_it_or_refused(
    tmp_path: Path, good: bytes, data: st.DataObject
) -> None:
    header = header_only(good)
    body = good[8 + len(header) :]
    whole = data.draw(
        mutations(good)
        | mutations(header).map(lambda text: struct.pack("<Q", len(text)) + text + body)
    )
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole)
    try:
        entries = read_header(path)
    except CheckpointError as error:
        check(error, printable=True)
        return
    # MLX reads every accepted file, and sees the same tensors.
    arrays = mx.load(str(path), format="safetensors")
    assert isinstance(arrays, dict)
    assert {name: tuple(array.shape) for name, array in arrays.items()} == {
        name: entry.shape for name, entry in entries.items()
    }
    mx.eval(arrays)


@fuzz
@given(mutations(GENERATION) | swapped(GENERATION) | st.binary(max_size=60))
def test_any_generation_config_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "generation_config.json").write_bytes(data)
    try:
        config = GenerationConfig.from_folder(tmp_path)
    except CheckpointError:
        return
    assert 0 <= config.min_p <= 1
    assert 0 < config.top_p <= 1
    assert 0 <= config.temperature <= 100


@fuzz
@given(
    mutations(b'{"metadata": {}, "weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}')
    | st.dictionaries(st.text(max_size=3), st.text(max_size=9) | st.none(), max_size=3).map(
        lambda names: json.dumps({"weight_map": names}).encode()
    )
)
def test_any_index_names_files_of_its_folder_or_is_refused(tmp_path: Path, data: bytes) -> None:
    for name in ("x.safetensors", "y.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / INDEX).write_bytes(data)
    try:
        shards = find_shards(tmp_path)
    except CheckpointError as error:
        check(error)
        return
    assert {shard.parent for shard in shards} == {tmp_path}


@fuzz
@given(mutations(TOKENIZER) | swapped(TOKENIZER))
def test_any_tokenizer_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    try:
        tokenizer = Tokenizer.from_folder(tmp_path)
    except CheckpointError:
        return
    ids = tokenizer.encode("abc abcdefgh <|im_end|>")
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    tokenizer.decode(ids)


@fuzz
@given(mutations(TOKENIZER_CONFIG) | swapped(TOKENIZER_CONFIG))
def test_any_tokenizer_config_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER)
    (tmp_path / "tokenizer_config.json").write_bytes(data)
    try:
        tokenizer = Tokenizer.from_folder(tmp_path)
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    except (CheckpointError, TemplateError):
        return


@settings(fuzz, max_examples=150)
@given(mutations(TEMPLATE.encode()) | st.binary(max_size=60))
def test_any_template_renders_or_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(data)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    try:
        template = ChatTemplate.from_folder(tmp_path)
        assert template is not None
        template.render(turns)
    except (CheckpointError, TemplateError):
        return


@fuzz
@given(data=st.data())
def test_a_model_with_any_config_runs_or_is_refused(
    random_checkpoint: Callable[..., Any], data: st.DataObject
) -> None:
    made = random_checkpoint()
    if not made.tensors and not (made.folder / "model.safetensors").exists():
        made.fill(mx.float32).save()
    before = (made.folder / "config.json").read_bytes()
    (made.folder / "config.json").write_bytes(data.draw(mutations(before) | swapped(before)))
    try:
        config = QwenConfig.from_folder(made.folder)
        weights = load_weights(made.folder, config)
    except CheckpointError:
        return
    logits = Qwen(config, weights)(mx.array([[1]]))
    assert logits.shape == (1, 1, config.vocab_size)
    assert mx.all(mx.isfinite(logits))
