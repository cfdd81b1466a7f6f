"""How tokens are chosen: what the checkpoint advises, unless the user says otherwise."""

from typing import TypeVar

from tinyllm_qwen import GenerationConfig, SamplingParams

from tinyllm_chat.settings import Settings

Number = TypeVar("Number", int, float)


def sampling_params(settings: Settings, advice: GenerationConfig, seed: int) -> SamplingParams:
    """The sampling of one answer.

    Raises:
        ValueError: if the checkpoint's own advice is out of range.
    """
    advised_temperature = advice.temperature if advice.do_sample else 0.0
    return SamplingParams(
        temperature=_first(settings.temperature, advised_temperature),
        top_k=_first(settings.top_k, advice.top_k),
        top_p=_first(settings.top_p, advice.top_p),
        min_p=_first(settings.min_p, advice.min_p),
        repetition_penalty=_first(settings.repetition_penalty, advice.repetition_penalty),
        seed=seed,
    )


def idle_options(settings: Settings, advice: GenerationConfig) -> list[str]:
    """The options that were given and change nothing, since decoding is greedy."""
    if not sampling_params(settings, advice, 0).is_greedy:
        return []
    given = {"--top-k": settings.top_k, "--top-p": settings.top_p, "--min-p": settings.min_p}
    return [option for option, value in given.items() if value is not None]


def _first(asked: Number | None, advised: Number) -> Number:
    return advised if asked is None else asked
