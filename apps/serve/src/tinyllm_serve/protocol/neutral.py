"""Fields of other servers that benchmarks send by default."""

from typing import Annotated, Literal

from pydantic import Field

from tinyllm_serve.protocol.base import Empty, Strict, expect


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
    stop_token_ids: Annotated[
        Empty | None, expect("expected an empty list: give the texts of the tokens as stop")
    ] = None
    include_stop_str_in_output: Annotated[
        Literal[False] | None, expect("expected false: an answer ends before its stop text")
    ] = None
    spaces_between_special_tokens: Annotated[
        Literal[True] | None, expect("expected true: special tokens are never a part of an answer")
    ] = None
    return_tokens_as_token_ids: Annotated[
        Literal[False] | None, expect("expected false: /tokenize has the ids of a text")
    ] = None
    cache_prompt: Annotated[
        Literal[True] | None, expect("expected true: the operator decides about the prefix cache")
    ] = None
