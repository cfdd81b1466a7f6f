"""Fields of other servers' requests: the remedy for each, and the values that are accepted.

A further field needs a row here, and one in docs/switching.md if it is vLLM's.
"""

from collections.abc import Mapping

from tinyllm_serve.protocol.base import NeutralValues

_THINKING = (
    "unknown here: use reasoning_effort or chat_template_kwargs of /v1/chat/completions; "
    'reasoning_effort: "none" answers without reasoning'
)
_FORMAT = (
    "unknown here: use structured_outputs, which has json, regex, choice and grammar (Lark), or "
    "response_format"
)
_SAMPLING = "this server does not sample so: leave it out"
_NO_SETTING = "this server has no such setting: leave it out"
_OPERATOR = "the operator decides about this: leave it out"
_TEMPLATE = (
    "the operator sets the template, as chat_template.jinja in the folder of the model: leave it "
    "out, or use chat_template_kwargs"
)
_BIAS = "unknown here: use logit_bias of /v1/chat/completions, where -100 forbids a token"
_FUSE = "leave it out: the operator fuses an adapter with the checkpoint"
_TEXT_ALONE = "the model reads and writes text alone: leave it out"
_IDS = "unknown here: /tokenize has the ids of a text"

_ROWS: tuple[tuple[str, str, tuple[object, ...]], ...] = (
    # vLLM
    ("guided_choice guided_grammar guided_json guided_regex", _FORMAT, ()),
    ("guided_decoding_backend guided_whitespace_pattern structural_tag", _FORMAT, ()),
    ("allowed_token_ids", "unknown here: use structured_outputs or logit_bias", ()),
    ("bad_words logits_processors", _BIAS, ([],)),
    ("prompt_logprobs", "unknown here: use echo and logprobs of /v1/completions", ()),
    ("return_token_ids", _IDS, (False,)),
    ("truncate_prompt_tokens", "unknown here: shorten the prompt; /tokenize counts its tokens", ()),
    ("detokenize", "expected true: answers are text, and /tokenize has its ids", (True,)),
    ("add_special_tokens", "expected false: write special tokens into the prompt", (False,)),
    ("documents", "unknown here: write the documents into a message", ([],)),
    ("chat_template", _TEMPLATE, ()),
    ("request_id", "unknown here: send it as the header X-Request-Id, for the server's log", ()),
    ("thinking_token_budget", _THINKING, (-1,)),
    ("prompt_embeds", "unknown here: send texts or tokens as prompt of /v1/completions", ()),
    ("media_io_kwargs mm_processor_kwargs", _TEXT_ALONE, ({},)),
    ("ec_transfer_params kv_transfer_params vllm_xargs", _NO_SETTING, ({},)),
    ("repetition_detection truncation_side watermarking", _NO_SETTING, ()),
    ("return_prompt_text", "unknown here: use echo of /v1/completions", (False,)),
    ("logprob_token_ids", "unknown here: use top_logprobs", ()),
    ("session_id", "unknown here: use prompt_cache_key", ()),
    # mlx_lm.server
    ("adapters", _FUSE, ()),
    ("draft_model", "the operator sets it, by --draft-model of serve: leave it out", ()),
    (
        "num_draft_tokens",
        "the operator sets it, by --num-speculative-tokens of serve: leave it out",
        (),
    ),
    ("repetition_context_size xtc_threshold", _SAMPLING, ()),
    ("xtc_probability", _SAMPLING, (0, 0.0)),
    ("role_mapping", "the chat template decides about this: leave it out", ()),
    # llama-server
    ("repeat_penalty", "unknown here: use repetition_penalty", ()),
    ("n_predict", "unknown here: use max_tokens", ()),
    ("grammar json_schema", _FORMAT, ()),
    ("mirostat", _SAMPLING, (0,)),
    ("mirostat_eta mirostat_tau repeat_last_n samplers tfs_z typical_p", _SAMPLING, ()),
    ("dry_multiplier dynatemp_range", _SAMPLING, (0, 0.0)),
    ("dry_allowed_length dry_base dry_penalty_last_n dry_sequence_breakers", _SAMPLING, ()),
    ("min_keep", _SAMPLING, (0,)),
    ("top_n_sigma", _SAMPLING, (-1, -1.0)),
    ("n_probs", "unknown here: use logprobs", (0,)),
    ("id_slot", _OPERATOR, (-1,)),
    ("lora", _FUSE, ([],)),
    (
        "reasoning_format",
        "reasoning is always returned as reasoning_content: leave it out",
        ("auto", "deepseek"),
    ),
    ("reasoning_budget", _THINKING, (-1,)),
    ("return_tokens", _IDS, (False,)),
    (
        "timings_per_token",
        "unknown here: use continuous_usage_stats of stream_options, or /metrics",
        (False,),
    ),
    # Ollama
    ("num_predict", "unknown here: use max_tokens", ()),
    ("enable_thinking reasoning think thinking", _THINKING, ()),
    ("format", _FORMAT, ()),
    (
        "num_ctx",
        "the operator sets the context, by --max-model-len and --kv-cache-memory of serve: leave "
        "it out",
        (),
    ),
    ("num_batch num_gpu num_keep num_thread use_mlock use_mmap", _OPERATOR, ()),
    ("keep_alive", "the model stays in memory: leave it out", ()),
    ("options", "unknown here: write its fields into the body, with OpenAI's names", ({},)),
    ("raw", "unknown here: use /v1/completions, which applies no template", (False,)),
    ("template", _TEMPLATE, ()),
    ("system", "unknown here: send a message of the role system", ()),
    # OpenAI
    ("function_call", "unknown here: use tool_choice", ()),
    ("functions", "unknown here: use tools", ([],)),
    ("prediction", "leave it out: --num-speculative-tokens of serve drafts from the text", ()),
    ("audio", _TEXT_ALONE, ()),
    ("web_search_options", "this server searches nothing: leave it out; functions can search", ()),
    (
        "truncation",
        "expected disabled: a prompt that is too long is refused, so shorten it",
        ("disabled",),
    ),
)
"""Names of fields, the reason and the remedy, and neutral values: the server does what they ask for
anyway."""

OTHER_NAMES: Mapping[str, str] = {
    name: remedy for names, remedy, _ in _ROWS for name in names.split()
}
"""Fields of other servers, each with what to do here instead."""

_NO_TEMPLATE = "no template is applied here: leave it out"

COMPLETION_NAMES: Mapping[str, str] = {
    **OTHER_NAMES,
    **dict.fromkeys(("chat_template", "raw", "template"), _NO_TEMPLATE),
    **dict.fromkeys(("function_call", "functions"), "unknown here: /v1/chat/completions has tools"),
    "logprob_token_ids": "unknown here: use logprobs",
    "session_id": _NO_SETTING,
    "system": "unknown here: write it into the prompt, or use /v1/chat/completions",
}
"""The remedies in `/v1/completions`."""

_RESPONSE_FORMAT = (
    "unknown here: use structured_outputs, which has json, regex, choice and grammar (Lark), or "
    "text.format"
)

RESPONSE_NAMES: Mapping[str, str] = {
    name: _RESPONSE_FORMAT if remedy == _FORMAT else remedy for name, remedy in OTHER_NAMES.items()
} | {
    "allowed_token_ids": "unknown here: use structured_outputs",
    "chat_template": _OPERATOR,
    "template": _OPERATOR,
    "timings_per_token": "unknown here: /metrics has times",
}
"""The remedies in `/v1/responses`."""

NEUTRAL_VALUES: NeutralValues = {
    name: neutral for names, _, neutral in _ROWS for name in names.split()
}
"""The values of these fields that are accepted, and have no effect."""
