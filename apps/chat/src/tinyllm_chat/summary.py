"""The line after an answer: what it took."""

import mlx.core as mx
from tinyllm_qwen import Stats

from tinyllm_chat.answer import Answer
from tinyllm_chat.assistant import Assistant


def summary(assistant: Assistant, answer: Answer) -> str:
    """Tokens, rates, the time to the first token, peak memory and what computed."""
    backend = assistant.backend
    parts = [f"{backend.ops.name} ops, {assistant.dtype}, {backend.device}"]
    if answer.stats is not None:
        parts = [*_figures(answer.stats), f"peak {size(mx.get_peak_memory())}", *parts]
    return " | ".join(parts)


def record(assistant: Assistant, answer: Answer) -> dict[str, object]:
    """The same, with the answer, as values for JSON; times in seconds, rates in tokens a second."""
    stats = answer.stats or Stats(0, 0, 0, 0.0, 0.0)
    return {
        "answer": answer.text,
        "reasoning": answer.reasoning or None,
        "model": assistant.settings.model,
        "finish_reason": answer.finish_reason,
        "tokens": {
            "prompt": stats.prompt_tokens,
            "cached": stats.cached_tokens,
            "generated": stats.generated_tokens,
        },
        "timings": {
            "load_seconds": assistant.load_seconds,
            "first_token_seconds": stats.prefill_seconds,
            "decode_seconds": stats.decode_seconds,
            "prefill_rate": stats.prefill_rate,
            "decode_rate": stats.decode_rate,
        },
        "peak_memory_bytes": mx.get_peak_memory(),
        "ops": assistant.backend.ops.name,
        "dtype": assistant.dtype,
        "device": assistant.backend.device,
        "seed": answer.seed,
    }


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def _figures(stats: Stats) -> list[str]:
    return [
        f"prompt {stats.prompt_tokens} tokens ({stats.cached_tokens} cached), "
        f"{stats.prefill_rate:,.0f}/s",
        f"answer {stats.generated_tokens} tokens, {stats.decode_rate:,.1f}/s",
        f"first token {stats.prefill_seconds:.2f} s",
    ]
