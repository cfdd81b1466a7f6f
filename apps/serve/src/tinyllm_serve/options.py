"""Declarations of command-line options, and checks of their values."""

import json
import math
from dataclasses import dataclass
from typing import Annotated

from tinyllm_cli.messages import UsageError
from tinyllm_cli.program import ARGUMENT
from typer import Option
from typer.models import OptionInfo

_OTHER_OPTIONS = (
    ("-m -hf --hf-repo --model-path --model-id", "use --model"),
    ("-c --ctx-size", "use --max-model-len"),
    ("-np --parallel --decode-concurrency --prompt-concurrency", "use --max-num-seqs"),
    ("-b --batch-size -ub --ubatch-size --prefill-step-size", "use --max-num-batched-tokens"),
    ("-a --alias", "use --served-model-name"),
    ("-n --predict --n-predict", "use --max-tokens"),
    (
        "--temp --temperature --top-k --top-p --min-p --repeat-penalty --generation-config",
        "use --override-generation-config",
    ),
    (
        "--chat-template-args --chat-template-kwargs",
        "use --default-chat-template-kwargs",
    ),
    (
        "--chat-template --chat-template-file",
        "write chat_template.jinja into the folder of the model",
    ),
    (
        "--enable-auto-tool-choice --tool-call-parser --reasoning-parser --enable-reasoning "
        "--reasoning-format --jinja",
        "leave it out, the chat template decides",
    ),
    (
        "--gpu-memory-utilization --cache-memory",
        "use --kv-cache-memory, in GB",
    ),
    ("--kv-cache-dtype -ctk -ctv --cache-type-k --cache-type-v", "use --kv-bits 8, or 4"),
    ("--prompt-cache-bytes", "use --prefix-cache-memory, in GB"),
    ("--slot-save-path", "use --prefix-cache-path"),
    ("--speculative-config -md --model-draft", "use --draft-model"),
    ("--num-draft-tokens --draft-max", "use --num-speculative-tokens"),
    (
        "--tensor-parallel-size -tp",
        "start several processes with mlx.launch (docs/parallel.md)",
    ),
    (
        "--pipeline-parallel-size -pp --pipeline",
        "use --split layers, and several processes (docs/parallel.md)",
    ),
    ("--data-parallel-size -dp", "use --ray with --replicas"),
    ("--lora-modules --enable-lora --lora --adapter-path", "fuse the adapter with the checkpoint"),
    ("--quantization -q --load-format", "leave it out, the checkpoint names its format"),
    ("--tokenizer --tokenizer-mode", "leave it out, the checkpoint has its tokenizer"),
    ("--trust-remote-code", "leave it out, no code of a checkpoint is run"),
    ("--task --runner", "leave it out, every endpoint is there"),
    (
        "--enforce-eager --enable-chunked-prefill --no-enable-chunked-prefill --swap-space "
        "--flash-attn -fa --cont-batching -cb",
        "leave it out, there is nothing to choose",
    ),
    ("-ngl --gpu-layers --n-gpu-layers --device", "leave it out, or choose --ops"),
    ("-t --threads", "set TINYLLM_NUM_THREADS in the environment"),
    ("--download-dir --model-cache", "set HF_HOME in the environment"),
    ("--hf-token", "set HF_TOKEN in the environment"),
    (
        "--disable-log-requests --enable-log-requests --disable-log-stats --log-level",
        "leave it out, the log has a line for each request without its text",
    ),
    (
        "--ssl-keyfile --ssl-certfile --ssl-key-file --ssl-cert-file",
        "put a proxy before the server",
    ),
)

REMEDIES = {ARGUMENT: "use --model {}"} | {
    name: remedy for names, remedy in _OTHER_OPTIONS for name in names.split()
}
"""Options of vLLM, mlx_lm.server and llama-server, each with what to do here instead."""


@dataclass(frozen=True)
class Range:
    """The bounds of a number, both included. NaN is outside of every range."""

    low: float | int
    high: float | int = math.inf

    def __str__(self) -> str:
        """Write the range for an error message."""
        if self.high == math.inf:
            return f"at least {self.low}"
        return f"from {self.low} to {self.high}"


def option(metavar: str, text: str, names: str = "") -> OptionInfo:
    """Declare an option with its help; two names are separated by a slash."""
    declared: OptionInfo = Option(*filter(None, names.split("/")), metavar=metavar, help=text)
    return declared


def json_option(name: str, text: str | None) -> dict[str, object]:
    """Return the JSON object that is the value of an option; empty without a value.

    Raises:
        UsageError: if the value is no JSON object.
    """
    try:
        value = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"--{name}: expected a JSON object, such as '{{\"name\": 1}}', got {text}")
    return value


def check(name: str, value: str | float | int, expected: str, valid: bool) -> None:
    """Raise UsageError if the value of an option is not valid."""
    if not valid:
        flag = f"--{name.replace('_', '-')}"
        raise UsageError(f"{flag}: expected {expected}, got {value}")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options of the model, which are a part of `Settings`."""

    model: Annotated[
        str, option("ID", "Folder, repository (owner/name) on the Hugging Face Hub, or pico.")
    ] = "pico"
    revision: Annotated[str | None, option("REV", "Branch, tag or commit on the Hub.")] = None
    served_model_name: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Model name in the API; may be repeated. Answers have the first one. [default: last "
            "part of ID]",
            "--served-model-name/--name",
        ),
    ] = None
    ops: Annotated[
        str, option("auto|cpu|cpu-int8|metal|mlx|reference", "Backend that computes.")
    ] = "auto"
    dtype: Annotated[
        str,
        option(
            "auto|float32|float16|bfloat16",
            "Type of the activations; auto is the checkpoint's, but float32 for mlx on a CPU.",
        ),
    ] = "auto"
    split: Annotated[
        str,
        option(
            "heads|layers|N,N",
            "Part of the model in each of several processes: heads of all layers (tensor "
            "parallel), or whole layers (pipeline parallel), N each.",
        ),
    ] = "heads"
    max_model_len: Annotated[
        int | None,
        option("N", "Most tokens of a prompt and its answer. [default: the model's context]"),
        Range(2),
    ] = None
    override_generation_config: Annotated[
        str | None,
        option(
            "JSON",
            "Fields that replace those of generation_config.json, the defaults of requests: "
            "do_sample, temperature, top_k, top_p, min_p, repetition_penalty.",
        ),
    ] = None
    default_chat_template_kwargs: Annotated[
        str | None,
        option(
            "JSON",
            "Variables of the chat template, such as '{\"enable_thinking\": false}', unless a "
            "request sets them.",
        ),
    ] = None

    @property
    def model_names(self) -> list[str]:
        """The model's names in the API. Answers have the first one."""
        given = [name for name in self.served_model_name or () if name]
        return given or [self.model.rstrip("/").rpartition("/")[2] or self.model]
