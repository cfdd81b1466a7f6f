"""Fixtures: the built-in model in float32, prompts, and the tokens of `generate` as the oracle."""

from collections.abc import Iterator

import mlx.core as mx
import pytest
from tinyllm_engine.kv import memory_plan
from tinyllm_engine.testing import Oracle, sample_prompts
from tinyllm_kernels import available, opset
from tinyllm_ops.testing import without_checks
from tinyllm_qwen import Qwen, Tokenizer, generate, load


@pytest.fixture(autouse=True)
def small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the page pool to 16 MiB, because touching 400 MB takes 0.3 s per engine."""
    monkeypatch.setattr(memory_plan, "_DEFAULT_BYTES", 1 << 24)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Run a test without the run-time check of signatures.

    The check takes most of the time of random schedules. Other tests call the same functions with
    it.
    """
    with without_checks():
        yield


@pytest.fixture(scope="session")
def pico() -> tuple[Qwen, Tokenizer]:
    ops = next(backend.name for backend in available() if backend.present)
    return load("pico", ops=opset(ops), dtype=mx.float32)


@pytest.fixture(scope="session")
def prompts(pico: tuple[Qwen, Tokenizer]) -> list[list[int]]:
    """Tokens of conversations. The last two repeat a question, so that prompt lookup has drafts."""
    tokenizer, question = pico[1], "what does rmsnorm do?"
    asked = {"role": "user", "content": question}
    short = tokenizer.apply_chat_template([asked])
    answer = [piece.token for piece in generate(*pico, short, max_tokens=24)]
    turn = [asked, {"role": "assistant", "content": tokenizer.decode(answer)}]
    repeated = [tokenizer.apply_chat_template([*turn * n, asked]) for n in (1, 2)]
    return [*sample_prompts(tokenizer), *repeated]


@pytest.fixture(scope="session")
def generated(pico: tuple[Qwen, Tokenizer]) -> Oracle:
    return Oracle(*pico)
