"""A whole model through the Metal kernels: under metalhost, and on a Mac on the GPU."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_kernels.metal import METAL
from tinyllm_kernels.metal.kernel import mlx_kernel
from tinyllm_ops import REFERENCE, OpSet
from tinyllm_qwen import load
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.testing.hybrid import hybrid_checkpoint

PROMPT = "What is a KV cache, and why?"


def greedy(ops: OpSet, count: int, checkpoint: str = "pico") -> list[int]:
    """Generate `count` tokens after the prompt, each the likeliest one."""
    model, tokenizer = load(checkpoint, ops=ops, dtype=mx.float32)
    caches, tokens, generated = model.make_caches(), tokenizer.encode(PROMPT), []
    for _ in range(count):
        logits = model(mx.array([tokens]), caches, last=1)
        generated.append(int(mx.argmax(logits[0, -1])))
        tokens = generated[-1:]
    return generated


@pytest.fixture
def names(metal_host: None, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of the compiled kernels."""
    names, real = set(), mx.fast.metal_kernel

    def metal_kernel(**text: Any) -> object:
        names.add(str(text["name"]))
        return real(**text)

    mlx_kernel.cache_clear()
    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
    return names


@pytest.mark.exhaustive
def test_pico_generates_the_tokens_of_the_reference(names: set[str]) -> None:
    assert greedy(METAL, 3) == greedy(REFERENCE, 3)
    assert names >= {
        "attention_decode",
        "attention_tiles",
        "embedding",
        "matrix_product",
        "matrix_product_add",
        "matrix_vector",
        "matrix_vector_add",
        "norm_rope",
        "rms_norm",
        "swiglu",
    }


def test_qwen35_generates_the_tokens_of_the_reference(names: set[str], tmp_path: Path) -> None:
    packed = PackedFormat(group_size=32, bits=4)
    folder = str(hybrid_checkpoint(tmp_path / "tiny", files="mlx", packed=packed))
    assert greedy(METAL, 3, folder) == greedy(REFERENCE, 3, folder)
    assert names >= {
        "attention_decode",
        "causal_conv",
        "gated_delta",
        "gated_rms_norm",
        "matrix_product",
        "matrix_vector",
        "norm_rope",
    }
