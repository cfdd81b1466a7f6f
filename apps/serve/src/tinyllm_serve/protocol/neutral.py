"""Fields of vLLM whose neutral values ask for what this server does in any case."""

from typing import Annotated, Literal

from pydantic import Field

from tinyllm_serve.protocol.base import Strict, expect


class NeutralSampling(Strict):
    """Neutral values of fields that choose tokens. Benchmarks send them by default."""

    min_tokens: Annotated[
        int | None,
        Field(ge=0, le=0),
        expect("expected 0: the model ends its answer, or max_tokens with ignore_eos: true"),
    ] = None
    skip_special_tokens: Annotated[
        Literal[True] | None, expect("expected true: special tokens are never a part of an answer")
    ] = None
    use_beam_search: Annotated[
        Literal[False] | None, expect("expected false: this server has no beam search")
    ] = None
    length_penalty: Annotated[
        float | None,
        Field(ge=1, le=1),
        expect("expected 1: this server has no beam search, which alone uses it"),
    ] = None
