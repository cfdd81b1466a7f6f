"""How the tokens of a request are chosen."""

from dataclasses import replace

from tinyllm_qwen import GenerationConfig, SamplingParams

from tinyllm_serve.schemas.sampling import SamplingFields


def sampling_params(
    fields: SamplingFields, advice: GenerationConfig, *, choice: int = 0, top_logprobs: int = 0
) -> SamplingParams:
    """The sampling of one of a request's answers.

    Args:
        fields: what the client says.
        advice: the checkpoint's own sampling, where the client says nothing.
        choice: which answer; each has a seed of its own.
        top_logprobs: how many of the likeliest tokens to report.
    """
    params = advice.sampling(
        temperature=fields.temperature,
        top_k=fields.top_k,
        top_p=fields.top_p,
        min_p=fields.min_p,
        repetition_penalty=fields.repetition_penalty,
    )
    return replace(
        params,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias={int(token): bias for token, bias in (fields.logit_bias or {}).items()},
        seed=None if fields.seed is None else (fields.seed + choice) % 2**64,
        top_logprobs=top_logprobs,
    )
