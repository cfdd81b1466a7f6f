"""Checkpoints of Qwen3.5 and Qwen3-Next in the files of Hugging Face and of MLX."""

import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_ops import MLX, REFERENCE, QuantizedTensor
from tinyllm_qwen import CheckpointError, ConversionConfig, convert, generate, load
from tinyllm_qwen.checkpoint.slice_reader import read_slices
from tinyllm_qwen.checkpoint.stored_tensor import find_tensors
from tinyllm_qwen.checkpoint.tensor_reader import iterate_tensors
from tinyllm_qwen.checkpoint.weights import load_weights
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.testing import SHAPES, hybrid_checkpoint

FOUR_BITS = PackedFormat(group_size=32, bits=4)
PROMPT = mx.random.randint(0, 2048, (1, 40), key=mx.random.key(1))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of three families in both kinds of files, and MLX's in 4 bits."""
    root = tmp_path_factory.mktemp("hybrid")
    made = {}
    for shape in ("tiny", "tiny-moe", "tiny-next"):
        source = hybrid_checkpoint(root / f"{shape}-hf", SHAPES[shape])
        made[f"{shape}-hf"] = source
        made[f"{shape}-mlx"] = convert(source, root / f"{shape}-mlx").folder
        packed = ConversionConfig(packed=FOUR_BITS)
        made[f"{shape}-4bit"] = convert(source, root / f"{shape}-4bit", packed).folder
    return made


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe", "tiny-next"])
def test_both_kinds_of_files_give_the_same_bits(folders: dict[str, Path], shape: str) -> None:
    ours, theirs = (load(folders[f"{shape}-{files}"], ops=MLX)[0] for files in ("hf", "mlx"))
    assert mx.array_equal(ours(PROMPT), theirs(PROMPT))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("tiny-hf", marks=pytest.mark.exhaustive),
        pytest.param("tiny-moe-hf", marks=pytest.mark.exhaustive),
        "tiny-4bit",
        pytest.param("tiny-next-4bit", marks=pytest.mark.exhaustive),
        pytest.param("tiny-moe-4bit", marks=pytest.mark.exhaustive),
    ],
)
def test_op_sets_give_the_same_greedy_tokens(folders: dict[str, Path], name: str) -> None:
    answers = []
    for ops in (REFERENCE, MLX):
        model, tokenizer = load(folders[name], ops=ops)
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": "What is a page?"}])
        answers.append([piece.token for piece in generate(model, tokenizer, prompt, max_tokens=48)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["tiny-hf", "tiny-moe-hf", "tiny-next-hf", "tiny-4bit"])
def test_chunks_give_the_same_states(folders: dict[str, Path], name: str) -> None:
    model, _ = load(folders[name], ops=MLX)
    whole, parts = model.make_caches(), model.make_caches()
    expected = model(PROMPT, whole, last=1)
    for start, stop in ((0, 7), (7, 33), (33, 39)):
        model(PROMPT[:, start:stop], parts)
    assert mx.allclose(model(PROMPT[:, 39:], parts, last=1), expected, rtol=1e-4, atol=1e-4)


def test_queries_and_gates_are_separate(folders: dict[str, Path]) -> None:
    folder = folders["tiny-hf"]
    config = QwenConfig.from_folder(folder)
    stored = dict(iterate_tensors(find_tensors(folder, config), None))[
        "layers.3.self_attn.q_proj.weight"
    ]
    weights = load_weights(folder, config)
    heads = stored.reshape(4, 2, 64, 128)  # H, queries or gates, D, E
    for part, name in enumerate(("q_proj", "g_proj")):
        weight = weights[f"layers.3.self_attn.{name}.weight"]
        assert isinstance(weight, mx.array)
        assert mx.array_equal(weight, heads[:, part].reshape(256, 128))
    packed = load_weights(folders["tiny-4bit"], QwenConfig.from_folder(folders["tiny-4bit"]))
    gates = packed["layers.3.self_attn.g_proj.weight"]
    assert isinstance(gates, QuantizedTensor)
    assert tuple(gates.shape) == (256, 128)


def test_the_projections_of_qwen3_next_are_separate(folders: dict[str, Path]) -> None:
    folder, name = folders["tiny-next-hf"], "layers.0.linear_attn.in_proj"
    config = QwenConfig.from_folder(folder)
    stored = dict(iterate_tensors(find_tensors(folder, config), None))
    weights = load_weights(folder, config)
    # The rows of each of two key heads: 32 of q and of k, then two value heads of v and of z.
    heads = stored[f"{name}_qkvz.weight"].reshape(2, 32 + 32 + 64 + 64, 128)
    q, k, v, z = (part.reshape(-1, 128) for part in mx.split(heads, [32, 64, 128], axis=1))
    b, a = (
        stored[f"{name}_ba.weight"].reshape(2, 2, 2, 128)[:, part].reshape(4, 128)
        for part in range(2)
    )
    for part, expected in {"qkv": mx.concatenate([q, k, v]), "z": z, "b": b, "a": a}.items():
        weight = weights[f"{name}_{part}.weight"]
        assert isinstance(weight, mx.array)
        assert mx.array_equal(weight, expected), part


def test_the_draft_head_is_converted_and_not_loaded(folders: dict[str, Path]) -> None:
    tensors = mx.load(str(folders["tiny-mlx"] / "model.safetensors"))
    assert isinstance(tensors, dict)
    assert "language_model.mtp.fc.weight" in tensors
    assert not any("visual" in name for name in tensors)
    config = QwenConfig.from_folder(folders["tiny-mlx"])
    assert not any(name.startswith("mtp.") for name in load_weights(folders["tiny-mlx"], config))


def test_the_draft_head_of_qwen3_next_is_left_out(tmp_path: Path) -> None:
    source = hybrid_checkpoint(tmp_path / "source", SHAPES["tiny-next"])
    done = convert(source, tmp_path / "target")
    assert done.notices == (
        "the draft head (mtp.*) is not converted: mlx-lm could not load the files",
    )
    tensors = mx.load(str(done.folder / "model.safetensors"))
    assert isinstance(tensors, dict)
    assert not any("mtp." in name for name in tensors)
    with pytest.raises(CheckpointError, match=r"expected a draft head \(mtp\.\*\), got files"):
        load(done.folder, draft_head=True)


@pytest.mark.parametrize("name", ["tiny-hf", "tiny-next-hf"])
def test_slices_are_converted_as_whole_tensors_are(folders: dict[str, Path], name: str) -> None:
    folder = folders[name]
    stored = find_tensors(folder, QwenConfig.from_folder(folder))
    whole = dict(iterate_tensors(stored, mx.float16))
    slices = {name: tuple(range(size) for size in t.shape) for name, t in stored.items()}
    read = read_slices(stored, slices, mx.float16)
    for tensor, array in whole.items():
        assert mx.array_equal(read[tensor], array), tensor
        assert array.dtype == (mx.float32 if tensor.endswith("A_log") else mx.float16), tensor


def test_16_bit_checkpoints_keep_their_dtype(tmp_path: Path) -> None:
    # The decay rates and the norm of recurrent layers are float32 in the files.
    model, _ = load(hybrid_checkpoint(tmp_path / "model", dtype=mx.bfloat16), ops=MLX)
    assert model.dtype == mx.bfloat16
    assert {str(w.dtype) for w in model.weights() if w.ndim > 1} == {"mlx.core.bfloat16"}


def edited(folder: Path, target: Path, edit: Callable[[dict[str, mx.array]], None]) -> Path:
    """Copy the weights and the config of a checkpoint, and change the weights."""
    target.mkdir()
    tensors = mx.load(str(folder / "model.safetensors"))
    assert isinstance(tensors, dict)
    edit(tensors)
    mx.save_safetensors(str(target / "model.safetensors"), tensors)
    (target / "config.json").write_text((folder / "config.json").read_text())
    return target


def without(name: str) -> Callable[[dict[str, mx.array]], None]:
    """Return a function that removes a tensor."""

    def edit(tensors: dict[str, mx.array]) -> None:
        del tensors[name]

    return edit


LAYER = "model.language_model.layers.0.linear_attn"


@pytest.mark.parametrize("name", ["A_log", "dt_bias", "conv1d.weight", "in_proj_z.weight"])
def test_a_missing_tensor_is_named(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = edited(folders["tiny-hf"], tmp_path / "m", without(f"{LAYER}.{name}"))
    with pytest.raises(CheckpointError, match=rf"missing \(1\):\n +layers.0.linear_attn.{name}"):
        load_weights(folder, QwenConfig.from_folder(folder))


def test_mixed_kinds_of_files_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    def mix(tensors: dict[str, mx.array]) -> None:
        name = f"{LAYER}.conv1d.weight"
        tensors[name] = tensors[name].swapaxes(1, 2)

    folder = edited(folders["tiny-hf"], tmp_path / "mixed", mix)
    with pytest.raises(CheckpointError, match=r"of Hugging Face, .* expected one format"):
        load_weights(folder, QwenConfig.from_folder(folder))


def test_a_part_of_the_draft_head_is_refused_if_the_head_is_wanted(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = edited(folders["tiny-hf"], tmp_path / "m", without("mtp.norm.weight"))
    config = QwenConfig.from_folder(folder)
    with pytest.raises(CheckpointError, match=r"missing \(1\):\n +mtp.norm.weight"):
        load_weights(folder, config, draft_head=True)
    assert "norm.weight" in load_weights(folder, config)  # nothing needs the head


def test_end_tokens_are_read_from_the_nested_settings(folders: dict[str, Path]) -> None:
    folder = folders["tiny-hf"]
    text = json.loads((folder / "config.json").read_text())["text_config"]
    _, tokenizer = load(folder)
    assert text["eos_token_id"] in tokenizer.eos_token_ids
