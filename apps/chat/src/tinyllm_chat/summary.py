"""The line after an answer: what it took."""

from tinyllm_qwen import Stats

from tinyllm_chat.answer import Answer
from tinyllm_chat.answerer import Answerer
from tinyllm_chat.size import size


def summary(assistant: Answerer, answer: Answer) -> str:
    """Tokens, rates, the time to the first token, peak memory and what computed."""
    parts = []
    if answer.stats is not None:
        parts += _figures(answer.stats)
        if assistant.peak_memory is not None:
            parts.append(f"peak {size(assistant.peak_memory)}")
    return " | ".join([*parts, assistant.label])


def record(assistant: Answerer, answer: Answer) -> dict[str, object]:
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
        "peak_memory_bytes": assistant.peak_memory,
        **assistant.facts,
        "seed": answer.seed,
    }


def _figures(stats: Stats) -> list[str]:
    return [
        f"prompt {stats.prompt_tokens} tokens ({stats.cached_tokens} cached), "
        f"{stats.prefill_rate:,.0f}/s",
        f"answer {stats.generated_tokens} tokens, {stats.decode_rate:,.1f}/s",
        f"first token {stats.prefill_seconds:.2f} s",
    ]
