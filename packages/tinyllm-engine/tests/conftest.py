"""The built-in model in float32, and what `generate` makes of prompts: the oracle of the engine."""

import mlx.core as mx
import pytest
from tinyllm_engine.kv import page_pool
from tinyllm_engine.testing import Oracle, sample_prompts
from tinyllm_kernels import available, opset
from tinyllm_qwen import Qwen, Tokenizer, load


@pytest.fixture(autouse=True)
def small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little more than a context: an engine takes a third of a second to touch 400 MB."""
    monkeypatch.setattr(page_pool, "_DEFAULT_BYTES", 1 << 24)


@pytest.fixture(scope="session")
def pico() -> tuple[Qwen, Tokenizer]:
    ops = next(backend.name for backend in available() if backend.present)
    return load("pico", ops=opset(ops), dtype=mx.float32)


@pytest.fixture(scope="session")
def prompts(pico: tuple[Qwen, Tokenizer]) -> list[list[int]]:
    return sample_prompts(pico[1])


@pytest.fixture(scope="session")
def generated(pico: tuple[Qwen, Tokenizer]) -> Oracle:
    return Oracle(*pico)
