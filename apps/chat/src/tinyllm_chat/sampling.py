"""How tokens are chosen: what the checkpoint advises, unless the user says otherwise."""

from dataclasses import replace

from tinyllm_qwen import GenerationConfig, SamplingParams

from tinyllm_chat.settings import Settings


def sampling_params(settings: Settings, advice: GenerationConfig, seed: int) -> SamplingParams:
    """The sampling of one answer.

    Raises:
        ValueError: if the checkpoint's own advice is out of range.
    """
    params = advice.sampling(
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        repetition_penalty=settings.repetition_penalty,
    )
    return replace(params, seed=seed)


def idle_options(settings: Settings, advice: GenerationConfig) -> list[str]:
    """The options that were given and change nothing, since decoding is greedy."""
    if not sampling_params(settings, advice, 0).is_greedy:
        return []
    given = {"--top-k": settings.top_k, "--top-p": settings.top_p, "--min-p": settings.min_p}
    return [option for option, value in given.items() if value is not None]
