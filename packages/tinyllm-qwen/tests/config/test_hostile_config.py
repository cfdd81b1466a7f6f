"""Files of configs, hostile ones too: the error names the invalid field, in bounded time."""

import json
import math
import time
from pathlib import Path

import pytest
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.config.generation import GenerationConfig
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import CheckpointError

PICO = Path(__file__).parents[2] / "src" / "tinyllm_qwen" / "pico"
CONFIG = json.loads((PICO / "config.json").read_bytes())
READ = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
]
HYBRID = {
    "model_type": "qwen3_next",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 1,
    "linear_conv_kernel_dim": 4,
    "num_hidden_layers": 4,
} | dict.fromkeys(
    (
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "num_experts",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
    ),
    1 << 40,
)
NONSENSE = [
    b"1000000000000",
    b"-1",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e400",
    b"9" * 4000,
    b'"1"',
    b"[]",
    b"[1]",
    b"{}",
    b"true",
]


def write(folder: Path, name: str, value: bytes, file: str = "config.json") -> None:
    base = CONFIG if file == "config.json" else {}
    text = json.dumps(base | {name: "@"}).encode()
    (folder / file).write_bytes(text.replace(b'"@"', value))


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: value[:16].decode())
@pytest.mark.parametrize("name", READ)
def test_a_value_that_is_no_number_is_named(tmp_path: Path, name: str, value: bytes) -> None:
    if (name, value) == ("rope_theta", b"1000000000000"):
        value = b"1e16"  # 1e12 is valid: the limit is 1e15
    write(tmp_path, name, value)
    with pytest.raises(CheckpointError, match=rf"config\.json: {name}: expected a") as caught:
        QwenConfig.from_folder(tmp_path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", [name for name in READ if name in ("vocab_size", "hidden_size")])
def test_null_counts_as_absent(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, b"null")
    with pytest.raises(CheckpointError, match=rf"{name}: .*got nothing"):
        QwenConfig.from_folder(tmp_path)


def test_an_integer_of_a_million_digits_is_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path, "hidden_size", b"9" * 1_000_000)
    start = time.thread_time()
    with pytest.raises(CheckpointError, match="not valid JSON"):
        QwenConfig.from_folder(tmp_path)
    assert time.thread_time() - start < 5


@pytest.mark.parametrize("value", [b"[" + b"0," * 400_000 + b"0]", b"[[" + b"0]]", b'["a"]'])
def test_a_list_of_layers_is_short_and_of_integers(tmp_path: Path, value: bytes) -> None:
    moe = {"model_type": "qwen3_moe", "num_experts": 2, "mlp_only_layers": "@"}
    text = json.dumps(CONFIG | moe).encode().replace(b'"@"', value)
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match="mlp_only_layers: expected"):
        QwenConfig.from_folder(tmp_path)


def test_the_largest_shapes_that_a_config_may_have_are_counted_not_made(tmp_path: Path) -> None:
    fields = {"vocab_size": 1 << 24, "hidden_size": 1 << 20, "num_hidden_layers": 1024}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | fields))
    start = time.thread_time()
    config = QwenConfig.from_folder(tmp_path)
    assert math.log2(config.vocab_size * config.hidden_size) == 44
    assert time.thread_time() - start < 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        for value in (*NONSENSE, b'["a"]', b"[null]", b"[1e400]")
    ],
)
def test_nonsense_for_sampling_is_named(tmp_path: Path, name: str, value: bytes) -> None:
    write(tmp_path, name, value, "generation_config.json")
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {name}: expected"):
        GenerationConfig.from_folder(tmp_path)


def test_from_folder_reads_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert QwenConfig.from_folder(tmp_path) == QwenConfig.from_hf(dict(CONFIG))


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing: is .* a checkpoint"):
        QwenConfig.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON"),
        (b"[1]", "expected a JSON object, got list"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_a_config_that_is_not_a_json_object_is_refused(
    tmp_path: Path, text: bytes, message: str
) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=message):
        QwenConfig.from_folder(tmp_path)


def test_no_axis_of_a_weight_is_too_long_for_mlx() -> None:
    """The largest accepted number of each field, found by the error of a larger one."""
    largest = dict.fromkeys(READ, 1 << 40) | HYBRID
    for _ in range(1000):
        try:
            config = QwenConfig.from_hf(dict(largest))
            break
        except CheckpointError as error:
            name = str(error).removeprefix("config.json: ").split(":")[0]
            largest[name] = largest[name] // 2
    shapes = expected_shapes(config)
    assert (1 << 28) < max(max(shape) for shape in shapes.values()) < (1 << 31)
