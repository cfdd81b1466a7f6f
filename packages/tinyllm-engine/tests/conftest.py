"""The built-in model in float32, and what `generate` makes of prompts: the oracle of the engine."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import pytest
from tinyllm_kernels import available, opset
from tinyllm_qwen import Qwen, SamplingParams, Tokenizer, generate, load

QUESTIONS = (
    "what does rmsnorm do?",
    "what is rope?",
    "hello",
    "why is decoding slow on a cpu?",
    "explain the kv cache to me, please, and say why it is there at all",
    "x",
)


@pytest.fixture(scope="session")
def pico() -> tuple[Qwen, Tokenizer]:
    ops = next(backend.name for backend in available() if backend.present)
    return load("pico", ops=opset(ops), dtype=mx.float32)


@pytest.fixture(scope="session")
def prompts(pico: tuple[Qwen, Tokenizer]) -> list[list[int]]:
    """Short conversations; the last ones begin alike and are longer than several pages."""
    tokenizer = pico[1]
    short = [
        tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": question}]))
        for question in QUESTIONS
    ]
    long = [token for prompt in short for token in prompt]
    return [*short, long, [*long, *short[0]], [*long, *short[1]], long[:64], short[0][:1]]


@pytest.fixture(scope="session")
def generated(
    pico: tuple[Qwen, Tokenizer],
) -> Callable[[Sequence[int], int, SamplingParams], list[int]]:
    """The tokens that `generate` gives for a prompt; each asked for once."""
    known: dict[tuple[object, ...], list[int]] = {}

    def tokens(prompt: Sequence[int], count: int, sampling: SamplingParams) -> list[int]:
        key = (*prompt, count, sampling)
        if key not in known:
            pieces = generate(*pico, prompt, max_tokens=count, sampling=sampling)
            known[key] = [piece.token for piece in pieces]
        return known[key]

    return tokens
