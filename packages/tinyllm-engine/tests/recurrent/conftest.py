"""Fixtures: a small model with recurrent layers, and the tokens of `generate` as the oracle."""

import mlx.core as mx
import pytest
from tinyllm_engine.testing import Oracle
from tinyllm_qwen import Qwen, Tokenizer, load
from tinyllm_qwen.testing import hybrid_checkpoint


@pytest.fixture(scope="session")
def hybrid(
    pico: tuple[Qwen, Tokenizer], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Qwen, Tokenizer]:
    folder = hybrid_checkpoint(tmp_path_factory.mktemp("models") / "qwen35")
    return load(folder, ops=pico[0].ops, dtype=mx.float32)


@pytest.fixture(scope="session")
def answers(hybrid: tuple[Qwen, Tokenizer]) -> Oracle:
    return Oracle(*hybrid)
