"""Qwen computes what transformers computes: golden files from tools/goldens/qwen.py."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_layers import Batch
from tinyllm_layers.cache.dense import CAPACITY_STEP
from tinyllm_ops import MLX, REFERENCE, OpSet, PageTable, dequantize, quantize
from tinyllm_qwen.checkpoint.weights import load_weights
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.model import Qwen

GOLDENS = Path(__file__).parent / "goldens" / "models"
FAMILIES = sorted(folder.name for folder in GOLDENS.iterdir())
LOGITS = 1e-4  # largest allowed error, relative to the largest logit
OPSETS = pytest.mark.parametrize("ops", [REFERENCE, MLX], ids=lambda ops: ops.name)


def read(family: str, ops: OpSet) -> tuple[Qwen, dict[str, mx.array]]:
    config = QwenConfig.from_folder(GOLDENS / family)
    model = Qwen(config, load_weights(GOLDENS / family, config), ops=ops)
    expected = mx.load(str(GOLDENS / family / "expected.safetensors"))
    assert isinstance(expected, dict)
    return model, expected


def relative_error(actual: mx.array, expected: mx.array) -> float:
    a, e = np.array(actual), np.array(expected)
    return float(np.abs(a - e).max() / np.abs(e).max())


@OPSETS
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, ops: OpSet) -> None:
    model, expected = read(family, ops)
    assert relative_error(model(expected["tokens"]), expected["logits"]) < LOGITS


@OPSETS
@pytest.mark.parametrize("family", FAMILIES)
def test_64_greedy_steps_are_those_of_transformers(family: str, ops: OpSet) -> None:
    model, expected = read(family, ops)
    cache, token, chosen = model.make_caches(), expected["tokens"][:1], []
    for _ in range(64):
        token = mx.argmax(model(token, cache, last=1), axis=-1)
        chosen.append(int(token))
    assert chosen == expected["greedy"].tolist()


@pytest.mark.parametrize(
    "family", ["qwen3", "qwen2-sliding", "qwen3-yarn", "qwen3-moe-mixed", "qwen3.5-4b"]
)
@pytest.mark.parametrize("cuts", [[23], [1] * 23, [5, 1, 17], [22, 1]], ids=str)
def test_chunks_of_any_size_give_the_same_logits(family: str, cuts: list[int]) -> None:
    model, expected = read(family, MLX)
    cache, start, parts = model.make_caches(), 0, []
    for length in cuts:
        parts.append(model(expected["tokens"][:, start : start + length], cache))
        start += length
    assert relative_error(mx.concatenate(parts, axis=1), expected["logits"]) < LOGITS


@pytest.mark.parametrize("last", [1, 5, 23])
def test_last_gives_the_logits_of_the_last_positions(last: int) -> None:
    model, expected = read("qwen2-untied", REFERENCE)
    logits = model(expected["tokens"], last=last)
    assert logits.shape == (2, last, 160)
    assert relative_error(logits, expected["logits"][:, -last:]) < LOGITS


def test_indices_give_the_logits_of_some_tokens() -> None:
    model, expected = read("qwen2-untied", REFERENCE)
    every = expected["logits"].reshape(2 * 23, 1, 160)
    for indices in ([45], [45, 22], [0, 0, 30], range(46)):
        logits = model(expected["tokens"], indices=indices)
        assert logits.shape == (len(indices), 1, 160)
        assert relative_error(logits, every[mx.array(list(indices))]) < LOGITS
    with pytest.raises(ValueError, match=r"indices: expected numbers from 0 to 45, got \[46\]"):
        model(expected["tokens"], indices=[46])
    with pytest.raises(ValueError, match="last: expected None with indices, got 1"):
        model(expected["tokens"], last=1, indices=[0])


@pytest.mark.parametrize("last", [0, -1, 24])
def test_more_positions_than_there_are_cannot_be_scored(last: int) -> None:
    model, expected = read("qwen3", MLX)
    with pytest.raises(ValueError, match=f"last: expected 1 to 23 positions, got {last}"):
        model(expected["tokens"], last=last)


def test_caches_of_different_lengths_are_refused() -> None:
    model, expected = read("qwen3", MLX)
    caches = model.make_caches()
    model(expected["tokens"], caches)
    caches[1].trim(3)
    with pytest.raises(ValueError, match=r"equally many tokens in every layer, got \[3, 23\]"):
        model(expected["tokens"], caches)


def test_pages_need_a_batch() -> None:
    model, expected = read("qwen3", MLX)
    with pytest.raises(ValueError, match=r"Batch\.paged"):
        model(expected["tokens"], model.make_pages(4, 8))


def test_pages_give_the_logits_of_caches() -> None:
    model, expected = read("qwen3", MLX)
    pages, chosen = model.make_pages(8, 8), [5, 2, 7]
    parts = []
    for start, stop in [(0, 9), (9, 10), (10, 23)]:
        table = PageTable.of([(chosen, start, stop)], num_pages=8, page_size=8)
        tokens, batch = expected["tokens"][:1, start:stop], Batch.paged(table, "prefill")
        parts.append(model(tokens, pages, batch=batch))
    assert relative_error(mx.concatenate(parts, axis=1), expected["logits"][:1]) < LOGITS


def test_a_replaced_op_runs_in_the_model() -> None:
    model, expected = read("qwen3", MLX)
    calls = 0

    def rope(x: mx.array, *settings: Any) -> mx.array:
        nonlocal calls
        calls += 1
        return MLX.rope(x, *settings)

    read("qwen3", replace(MLX, rope=rope))[0](expected["tokens"])  # type: ignore[arg-type]
    assert calls == 2 * len(model.layers)  # queries and keys of each layer


@OPSETS
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_quantized_model_equals_the_dequantized_model(family: str, bits: int, ops: OpSet) -> None:
    config = QwenConfig.from_folder(GOLDENS / family)
    dense = load_weights(GOLDENS / family, config)
    # Only matrices with 64 columns can be packed: 48 is no multiple of the group size.
    packed = {
        name: quantize(w, 64, bits) if isinstance(w, mx.array) and w.shape[-1] == 64 else w
        for name, w in dense.items()
    }
    read_back = {
        name: w if isinstance(w, mx.array) else dequantize(w) for name, w in packed.items()
    }
    tokens = mx.array([[1, 2, 3, 150]])
    expected = Qwen(config, read_back, ops=REFERENCE)(tokens)
    assert relative_error(Qwen(config, packed, ops=ops)(tokens), expected) < LOGITS
    assert relative_error(expected, Qwen(config, dense, ops=REFERENCE)(tokens)) > LOGITS


def test_a_quantized_cache_is_close_and_closer_with_more_bits() -> None:
    model, expected = read("qwen3", MLX)
    errors = [
        relative_error(
            model(expected["tokens"], model.make_caches(kv_bits=bits)), expected["logits"]
        )
        for bits in (4, 8)
    ]
    assert LOGITS < errors[1] < 0.03 < errors[0] < 0.5


def test_a_head_dim_that_no_group_divides_cannot_have_a_quantized_cache() -> None:
    model, _ = read("qwen3-bias", MLX)
    with pytest.raises(ValueError, match="head dim in groups of 32, the model has 16"):
        model.make_caches(kv_bits=8)


def test_a_rotating_cache_is_exact_until_it_turns() -> None:
    model, expected = read("qwen3", MLX)
    exact = model(expected["tokens"], model.make_caches(max_size=23))
    assert relative_error(exact, expected["logits"]) < LOGITS
    forgetful = model(expected["tokens"], model.make_caches(max_size=12))
    assert relative_error(forgetful[:, :12], expected["logits"][:, :12]) < LOGITS
    assert relative_error(forgetful[:, -1], expected["logits"][:, -1]) > LOGITS


def test_a_sliding_layer_keeps_its_window_and_no_more() -> None:
    model, expected = read("qwen2-sliding", MLX)
    for max_size in (None, 64, 5):
        full, sliding = model.make_caches(max_size=max_size)
        model(expected["tokens"], [full, sliding])
        assert sliding.arrays[0].shape[-2] == min(7, max_size or 7)
        # A dense cache grows in steps. A rotating cache has room for `max_size` tokens at once.
        assert full.arrays[0].shape[-2] == (max_size or CAPACITY_STEP)


def test_bounds_that_a_cache_cannot_have_are_refused() -> None:
    model, _ = read("qwen3", MLX)
    with pytest.raises(ValueError, match="at most one, got both"):
        model.make_caches(kv_bits=8, max_size=64)
    with pytest.raises(ValueError, match=r"max_size: expected at least 5, .* got 4"):
        model.make_caches(max_size=4)


def test_too_few_caches_are_refused() -> None:
    model, expected = read("qwen3", MLX)
    with pytest.raises(ValueError, match="expected 2, one per layer, got 1"):
        model(expected["tokens"], model.make_caches()[:1])


def test_nbytes_counts_what_the_file_holds() -> None:
    model, _ = read("qwen2", MLX)
    file = GOLDENS / "qwen2" / "model.safetensors"
    assert 0 < file.stat().st_size - model.nbytes < 8192  # the header
