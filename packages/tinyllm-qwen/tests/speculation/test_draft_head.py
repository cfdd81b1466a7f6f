"""The draft head against its formula in float64, and the checkpoints that have one or lack one."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from tinyllm_layers import Batch
from tinyllm_ops import MLX, REFERENCE, OpSet, QuantizedTensor
from tinyllm_ops.testing import assert_close, exact
from tinyllm_qwen import CheckpointError, ConversionConfig, Qwen, convert, load
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.testing import SHAPES, hybrid_checkpoint

Array = NDArray[np.float64]
Tensors = dict[str, Array]
E, H, KV, D, ROTATED, EPS = 128, 4, 2, 64, 16, 1e-6  # the sizes of the shape "tiny"
TOKENS = mx.random.randint(0, 2041, (1, 9), key=mx.random.key(5))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("drafts")
    made = {}
    for shape in ("tiny", "tiny-moe"):
        made[shape] = hybrid_checkpoint(root / shape, SHAPES[shape])
        made[f"{shape}-mlx"] = convert(made[shape], root / f"{shape}-mlx").folder
        packed = ConversionConfig(packed=PackedFormat(group_size=32, bits=4))
        made[f"{shape}-4bit"] = convert(made[shape], root / f"{shape}-4bit", packed).folder
    made["tiny-next"] = hybrid_checkpoint(root / "tiny-next", SHAPES["tiny-next"])
    return made


def normalized(x: Array, centred: Array) -> Array:
    """RMSNorm with a zero-centred weight, as Hugging Face stores it."""
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * (1 + centred))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def mlp(tensors: Tensors, name: str, x: Array) -> Array:
    gate, up, down = (tensors[f"{name}.{each}_proj.weight"].T for each in ("gate", "up", "down"))
    return np.asarray((x @ gate * sigmoid(x @ gate) * (x @ up)) @ down)


def experts(tensors: Tensors, name: str, x: Array) -> Array:
    """Two of eight experts, with routing weights whose sum is 1, and the shared expert."""
    out = sigmoid(x @ tensors[f"{name}.shared_expert_gate.weight"].T)
    out = out * mlp(tensors, f"{name}.shared_expert", x)
    scores = np.exp(x @ tensors[f"{name}.gate.weight"].T)
    for row, own in enumerate(scores):
        best = np.argsort(own)[-2:]
        for expert in best:
            weight = own[expert] / own[best].sum()
            out[row] += weight * mlp(tensors, f"{name}.experts.{expert}", x[row])
    return out


def rotated(x: Array) -> Array:
    """Rotate the first features of `L heads D` at positions 0 to L, in pairs i, i + ROTATED / 2."""
    half = ROTATED // 2
    angles = np.arange(len(x))[:, None, None] / 1e7 ** (2 * np.arange(half) / ROTATED)
    a, b = x[..., :half], x[..., half:ROTATED]
    turned = [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
    return np.concatenate([*turned, x[..., ROTATED:]], axis=-1)


def attention(tensors: Tensors, name: str, x: Array) -> Array:
    """Causal attention over all positions, with norms of queries and keys, and an output gate."""
    q, k, v = (x @ tensors[f"{name}.{each}_proj.weight"].T for each in "qkv")
    q, gate = np.split(q.reshape(-1, H, 2 * D), 2, axis=-1)
    q = rotated(normalized(q, tensors[f"{name}.q_norm.weight"]))
    k = rotated(normalized(k.reshape(-1, KV, D), tensors[f"{name}.k_norm.weight"]))
    v, out = v.reshape(-1, KV, D), np.zeros_like(q)
    for position in range(len(x)):
        for head in range(H):
            group = head // (H // KV)
            scores = np.exp(k[: position + 1, group] @ q[position, head] / np.sqrt(D))
            out[position, head] = scores @ v[: position + 1, group] / scores.sum()
    return np.asarray((out * sigmoid(gate)).reshape(-1, H * D) @ tensors[f"{name}.o_proj.weight"].T)


def expected(tensors: Tensors, tokens: list[int], hidden: Array) -> Array:
    """Return the output of the head by its formula, from the tensors of Hugging Face's files."""
    embedded = embedding(tensors)[tokens]
    parts = (
        normalized(embedded, tensors["mtp.pre_fc_norm_embedding.weight"]),
        normalized(hidden, tensors["mtp.pre_fc_norm_hidden.weight"]),
    )
    x = np.concatenate(parts, axis=-1) @ tensors["mtp.fc.weight"].T
    name = "mtp.layers.0"
    normed = normalized(x, tensors[f"{name}.input_layernorm.weight"])
    x = x + attention(tensors, f"{name}.self_attn", normed)
    normed = normalized(x, tensors[f"{name}.post_attention_layernorm.weight"])
    is_sparse = f"{name}.mlp.gate.weight" in tensors
    x = x + (experts if is_sparse else mlp)(tensors, f"{name}.mlp", normed)
    return normalized(x, tensors["mtp.norm.weight"])


def embedding(tensors: Tensors) -> Array:
    """Return the embedding: its name has another prefix in each family."""
    return next(array for name, array in tensors.items() if name.endswith("embed_tokens.weight"))


def drafted(model: Qwen) -> mx.array:
    """Compute 8 positions of the head: 5 in a prefill pass, 3 in decode passes."""
    caches = model.make_caches()
    outputs = []
    for start, stop in ((0, 5), (5, 6), (6, 8)):
        batch = Batch.at(start, 1, stop - start, "decode" if start else "prefill")
        hidden = model.norm(model.hidden(TOKENS[:, start:stop], batch, caches))
        outputs.append(model.draft(TOKENS[:, start + 1 : stop + 1], hidden, batch, caches))
    assert {cache.offset for cache in caches} == {8}
    return mx.concatenate(outputs, axis=1)


@pytest.mark.parametrize("ops", [REFERENCE, MLX], ids=["reference", "mlx"])
@pytest.mark.parametrize("shape", ["tiny", "tiny-moe", "tiny-next"])
def test_the_head_follows_its_formula(folders: dict[str, Path], shape: str, ops: OpSet) -> None:
    model, _ = load(folders[shape], ops=ops, draft_head=True)
    stored = mx.load(str(folders[shape] / "model.safetensors"))
    assert isinstance(stored, dict)
    tensors = {name: exact(tensor) for name, tensor in stored.items()}
    hidden = model.norm(
        model.hidden(TOKENS[:, :8], Batch.at(0, 1, 8, "prefill"), model.make_caches())
    )
    tokens = [int(token) for token in TOKENS[0, 1:]]
    wanted = expected(tensors, tokens, exact(hidden[0]))
    assert_close(drafted(model)[0], wanted)
    head = tensors.get("lm_head.weight", embedding(tensors))
    assert_close(model.project(drafted(model))[0], wanted @ head.T)


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
def test_both_kinds_of_files_give_the_same_drafts(folders: dict[str, Path], shape: str) -> None:
    ours, theirs = (
        drafted(load(folders[name], ops=MLX, draft_head=True)[0])
        for name in (shape, f"{shape}-mlx")
    )
    assert mx.array_equal(ours, theirs)


def test_a_quantized_head_stays_packed(folders: dict[str, Path]) -> None:
    model, _ = load(folders["tiny-4bit"], ops=MLX, draft_head=True)
    assert model.draft_head is not None
    packed = [isinstance(weight, QuantizedTensor) for weight in model.draft_head.weights()]
    assert packed.count(True) == 9  # fc, q, gate of q, k, v, o and the three of the MLP
    assert mx.isfinite(drafted(model)).all()


def test_the_caches_of_a_head_come_last(folders: dict[str, Path]) -> None:
    with_head = load(folders["tiny"], ops=MLX, draft_head=True)[0]
    without = load(folders["tiny"], ops=MLX)[0]
    assert without.draft_head is None
    assert with_head.num_caches == len(with_head.make_caches()) == 9
    assert len(with_head.make_pages(2, 16, state_slots=1)) == 9
    assert with_head.page_bytes(16) == without.page_bytes(16) // 2 * 3  # 2 layers have attention
    assert with_head.nbytes > without.nbytes
    assert mx.array_equal(with_head(TOKENS), without(TOKENS))


def test_a_checkpoint_without_a_head_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "without"
    folder.mkdir()
    for file in folders["tiny"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = mx.load(str(folder / "model.safetensors"))
    assert isinstance(tensors, dict)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    mx.save_safetensors(str(folder / "model.safetensors"), kept)
    load(folder)
    for source in (folder, "pico"):
        with pytest.raises(CheckpointError, match=r"expected a draft head .* `convert`"):
            load(source, draft_head=True)
    model, _ = load(folder)
    with pytest.raises(ValueError, match="load the model with draft_head=True"):
        model.draft(TOKENS, mx.zeros((1, 9, E)), Batch.at(0, 1, 9), model.make_caches())


def test_a_head_of_two_layers_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    for file in folders["tiny"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = (folder / "config.json").read_text()
    name = '"mtp_num_hidden_layers": '
    assert name in config
    (folder / "config.json").write_text(config.replace(f"{name}1", f"{name}2"))
    tensors = mx.load(str(folder / "model.safetensors"))
    assert isinstance(tensors, dict)
    first = "mtp.layers.0."
    more = {n.replace(".0.", ".1.", 1): t for n, t in tensors.items() if n.startswith(first)}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors | more)
    load(folder)
    with pytest.raises(CheckpointError, match="expected a draft head of 1 layer"):
        load(folder, draft_head=True)
