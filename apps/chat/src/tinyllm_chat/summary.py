"""Counts, rates and memory of an answer, as text and as JSON."""

from tinyllm_qwen import Stats
from tinyllm_qwen.format_bytes import format_bytes

from tinyllm_chat.answer import Answer
from tinyllm_chat.assistant import Assistant


def summary(assistant: Assistant, answer: Answer) -> str:
    """Return one line: tokens, rates, time to first token, peak memory, kernels and device."""
    parts = []
    stats = answer.stats
    if stats is not None:
        rate = f", {stats.decode_rate:,.1f}/s" if stats.decode_rate else ""
        if stats.prompt_tokens:  # a server reports them after a complete answer, or never
            parts.append(
                f"prompt {stats.prompt_tokens} tokens ({stats.cached_tokens} cached), "
                f"{stats.prefill_rate:,.0f}/s"
            )
        parts += [
            f"answer {stats.generated_tokens} tokens{rate}",
            f"first token {stats.prefill_seconds:.2f} s",
        ]
        if stats.draft_tokens:
            parts.append(f"{stats.accepted_tokens} of {stats.draft_tokens} draft tokens accepted")
        if assistant.peak_memory is not None:
            parts.append(f"peak {format_bytes(assistant.peak_memory)}")
    return " | ".join([*parts, assistant.description])


def record(assistant: Assistant, answer: Answer) -> dict[str, object]:
    """Return the answer and its summary as JSON values; rates are tokens a second."""
    stats = answer.stats or Stats(0, 0, 0, 0.0, 0.0)
    drafts = {"draft": stats.draft_tokens, "accepted": stats.accepted_tokens}
    if assistant.settings.draft_model is None:
        drafts = {}
    return {
        "answer": answer.text,
        "reasoning": answer.reasoning or None,
        "model": assistant.settings.model,
        "finish_reason": answer.finish_reason,
        "tokens": {
            "prompt": stats.prompt_tokens,
            "cached": stats.cached_tokens,
            "generated": stats.generated_tokens,
            **drafts,
        },
        "timings": {
            "load_seconds": assistant.load_seconds,
            "first_token_seconds": stats.prefill_seconds,
            "decode_seconds": stats.decode_seconds,
            "prefill_rate": stats.prefill_rate,
            "decode_rate": stats.decode_rate,
        },
        "peak_memory_bytes": assistant.peak_memory,
        **assistant.metadata,
        "seed": answer.seed,
    }
