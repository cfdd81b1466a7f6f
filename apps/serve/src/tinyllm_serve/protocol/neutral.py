"""Fields of other servers: neutral values that are accepted, and names that are refused."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from tinyllm_serve.protocol.base import Empty, Strict, expect

_THINKING = (
    "unknown here: use reasoning_effort or chat_template_kwargs of /v1/chat/completions; "
    'reasoning_effort: "none" answers without reasoning'
)
_FORMAT = (
    "unknown here: use structured_outputs, which has json, regex, choice and grammar (Lark), or "
    "response_format"
)

OTHER_NAMES: Mapping[str, str] = {
    "repeat_penalty": "unknown here: use repetition_penalty",
    **dict.fromkeys(("n_predict", "num_predict"), "unknown here: use max_tokens"),
    **dict.fromkeys(("enable_thinking", "reasoning", "think", "thinking"), _THINKING),
    **dict.fromkeys(("guided_choice", "guided_grammar", "guided_json", "guided_regex"), _FORMAT),
    **dict.fromkeys(("format", "grammar", "json_schema"), _FORMAT),
    **dict.fromkeys(
        ("mirostat", "mirostat_eta", "mirostat_tau", "repeat_last_n", "tfs_z", "typical_p"),
        "this server does not sample so: leave it out",
    ),
    "num_ctx": "the operator sets the context, by --max-model-len and --kv-cache-memory of serve: "
    "leave it out",
    **dict.fromkeys(
        ("num_batch", "num_gpu", "num_keep", "num_thread", "use_mlock", "use_mmap"),
        "the operator decides about this: leave it out",
    ),
    "keep_alive": "the model stays in memory: leave it out",
}
"""Fields of Ollama, llama-server and older vLLM, each with what to do here instead."""


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
