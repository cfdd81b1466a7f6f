"""The options of the command line, and their checks."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from tinyllm_cli.messages import UsageError
from tinyllm_cli.program import version_option
from typer import Option

from tinyllm_chat.thinking import EFFORTS

T = TypeVar("T")

KV_BITS = (4, 8)
DRAFT_HEAD = "mtp"
"""The value of `--draft-model` for the draft head in the checkpoint."""

MAX_TOKENS = 4096
"""The default of `--max-tokens` for a model in this process."""

NUM_SPECULATIVE_TOKENS = 2
"""The default number of draft tokens of a step. Each costs a pass of the output head."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All options of `chat`. Typer reads the command line from these fields.

    None leaves a choice to the checkpoint, or to the server.

    Raises:
        UsageError: a value is out of its range, or an option lacks the option that it needs.
    """

    prompt: Annotated[
        str | None, Option("--prompt", "-p", metavar="TEXT", help="Answer this question and exit.")
    ] = None
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON record instead of the answer.")
    ] = False
    model: Annotated[
        str, Option(metavar="ID", help="A folder, owner/name on the Hugging Face Hub, or pico.")
    ] = "pico"
    revision: Annotated[
        str | None, Option(metavar="REV", help="Branch, tag or commit on the Hub.")
    ] = None
    ops: Annotated[
        str,
        Option(
            metavar="auto|cpu|cpu-int8|metal|mlx|reference", help="The implementation of the maths."
        ),
    ] = "auto"
    dtype: Annotated[
        str,
        Option(
            metavar="auto|float32|float16|bfloat16",
            help="The dtype of the arithmetic. auto is the checkpoint's own, but float32 for mlx "
            "on a CPU.",
        ),
    ] = "auto"
    split: Annotated[
        str,
        Option(
            metavar="heads|layers|N,N",
            help="The division of the model among several processes: heads of all layers, layers, "
            "or N layers each.",
        ),
    ] = "heads"
    system: Annotated[
        str | None,
        Option("--system-prompt", "--system", metavar="TEXT", help="The system message."),
    ] = None
    max_tokens: Annotated[
        int | None,
        Option(
            metavar="N",
            help="The most tokens of an answer, thinking included.  "
            f"[default: {MAX_TOKENS}, with --server that of the server]",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        Option(
            "--temperature", "--temp", metavar="T", help="The sampling temperature; 0 is greedy."
        ),
    ] = None
    top_k: Annotated[
        int | None, Option(metavar="K", help="Choose from the K likeliest tokens; 0: all.")
    ] = None
    top_p: Annotated[
        float | None,
        Option(metavar="P", help="Choose from the likeliest tokens of total probability P."),
    ] = None
    min_p: Annotated[
        float | None,
        Option(metavar="P", help="Choose from tokens at least P times as likely as the top."),
    ] = None
    repetition_penalty: Annotated[
        float | None, Option(metavar="R", help="Above 1: repeat less.")
    ] = None
    seed: Annotated[
        int | None, Option(metavar="N", help="The same seed gives the same answers.")
    ] = None
    stop: Annotated[
        list[str] | None,
        Option(metavar="TEXT", help="End answers before this text; may be repeated."),
    ] = None
    kv_bits: Annotated[
        int | None, Option(metavar="4|8", help="Quantize cached keys and values.")
    ] = None
    max_model_len: Annotated[
        int | None,
        Option("--max-model-len", "--max-context", metavar="N", help="Limit the context."),
    ] = None
    draft_model: Annotated[
        str | None,
        Option(
            metavar=DRAFT_HEAD,
            help="Decode with draft tokens from the checkpoint's draft head (Qwen3.5); the text "
            "stays the same.",
        ),
    ] = None
    num_speculative_tokens: Annotated[
        int | None,
        Option(
            metavar="N",
            help=f"Draft tokens of a step. [default: {NUM_SPECULATIVE_TOKENS} with --draft-model]",
        ),
    ] = None
    no_think: Annotated[
        bool, Option("--no-think", help="Ask the model to answer without thinking.")
    ] = False
    reasoning_effort: Annotated[
        str | None,
        Option(metavar="|".join(EFFORTS), help="How much Qwen3.8 thinks before it answers."),
    ] = None
    server: Annotated[
        str | None,
        Option(
            "--server",
            "--url",
            metavar="URL",
            help="Chat with the model of a running `serve`; load no model here.",
        ),
    ] = None
    api_key: Annotated[
        str | None,
        Option(metavar="KEY", help="The API key of the server.  [env var: TINYLLM_API_KEY]"),
    ] = field(default=None, repr=False)
    version: Annotated[bool, version_option("chat")] = False

    def __post_init__(self) -> None:
        """Check every range. Comparisons with NaN are false, so NaN fails each check."""
        _check("--max-tokens", self.max_tokens, "at least 1", lambda n: n >= 1)
        _check("--temperature", self.temperature, "from 0 to 1e10", lambda t: 0 <= t <= 1e10)
        largest = "from 0 (all tokens) to 2^31 - 1"
        _check("--top-k", self.top_k, largest, lambda k: 0 <= k < 2**31)
        _check("--top-p", self.top_p, "above 0 and at most 1", lambda p: 0 < p <= 1)
        _check("--min-p", self.min_p, "from 0 to 1", lambda p: 0 <= p <= 1)
        penalties, penalty = "from 1e-10 to 1e10 (1 is off)", self.repetition_penalty
        _check("--repetition-penalty", penalty, penalties, lambda r: 1e-10 <= r <= 1e10)
        _check("--seed", self.seed, "from 0 to 2^64 - 1", lambda n: 0 <= n < 2**64)
        _check("--kv-bits", self.kv_bits, "4 or 8", lambda n: n in KV_BITS)
        _check("--max-model-len", self.max_model_len, "at least 2 tokens", lambda n: n >= 2)
        for text in self.stop or ():
            _check_stop(text)
        effort = self.reasoning_effort
        _check("--reasoning-effort", effort, f"one of {', '.join(EFFORTS)}", lambda e: e in EFFORTS)
        if effort is not None and self.no_think:
            raise UsageError("--reasoning-effort: expected no --no-think beside it")
        self._check_drafts()
        if self.server is not None:
            self._check_server(self.server)
        elif self.api_key is not None:
            raise UsageError("--api-key: expected --server URL with it")
        self._check_arithmetic()

    @property
    def thinking(self) -> str | None:
        """The state of thinking that the options set; None for the chat template's default."""
        return "off" if self.no_think else self.reasoning_effort

    @property
    def answer_tokens(self) -> int:
        """The most tokens of an answer: MAX_TOKENS without `max_tokens`."""
        return self.max_tokens or MAX_TOKENS

    @property
    def num_draft_tokens(self) -> int:
        """The most draft tokens of a step."""
        if self.draft_model is None:
            return 0
        return self.num_speculative_tokens or NUM_SPECULATIVE_TOKENS

    def seed_of(self, answer: int) -> int:
        """Return the seed of an answer, by its number from 0 on; a random one without `seed`."""
        if self.seed is None:
            # 32 bits: every JSON reader keeps it exact, and the user can pass it to --seed.
            return secrets.randbits(32)
        return (self.seed + answer) % 2**64

    def _check_arithmetic(self) -> None:
        if self.ops == self.dtype == "auto":
            return
        # Imported here, because the import loads MLX, which errors of other options do not need.
        from tinyllm_kernels.backend_choice import DTYPES, OPS

        _check("--ops", self.ops, f"one of {', '.join(OPS)}", lambda name: name in OPS)
        _check("--dtype", self.dtype, f"one of {', '.join(DTYPES)}", lambda name: name in DTYPES)

    def _check_drafts(self) -> None:
        """Check the options of speculation."""
        if self.draft_model not in (None, DRAFT_HEAD):
            raise UsageError(
                f"--draft-model: expected {DRAFT_HEAD}, the draft head of the model, got "
                f"{self.draft_model}: smaller models draft in `serve` alone"
            )
        number = self.num_speculative_tokens
        _check("--num-speculative-tokens", number, "from 1 to 64", lambda n: 1 <= n <= 64)
        if number is not None and self.draft_model is None:
            raise UsageError(
                f"--num-speculative-tokens: expected --draft-model {DRAFT_HEAD} with it"
            )

    def _check_server(self, server: str) -> None:
        """Refuse options that only the server can set."""
        _check(
            "--server",
            server,
            "a URL such as http://127.0.0.1:8000",
            lambda url: url.startswith(("http://", "https://")),
        )
        for name in [
            "ops",
            "dtype",
            "split",
            "kv_bits",
            "max_model_len",
            "draft_model",
            "revision",
        ]:
            if getattr(self, name) != getattr(Settings, name):  # the default
                raise UsageError(
                    f"--{name.replace('_', '-')}: not allowed with --server, which has loaded the "
                    "model already"
                )


def _check_stop(text: str) -> None:
    """Raise UsageError for a stop text that no answer can have.

    Python decodes bytes of the command line that are not UTF-8 as lone surrogates.
    """
    if not text:
        raise UsageError("--stop: expected at least one character, got an empty string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"--stop: expected text in UTF-8, got {text!a}") from error


def _check(option: str, value: T | None, allowed: str, holds: Callable[[T], bool]) -> None:
    """Raise UsageError if the value of an option is given and not allowed."""
    if value is not None and not holds(value):
        raise UsageError(f"{option}: expected {allowed}, got {value}")
