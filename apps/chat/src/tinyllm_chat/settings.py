"""The options of the command line, and their checks."""

import secrets
from dataclasses import dataclass, field

from tinyllm_chat.errors import UsageError

KV_BITS = (4, 8)
DRAFT_HEAD = "mtp"
"""The value of `--draft-model` for the draft head in the checkpoint."""

MAX_TOKENS = 4096
"""The default of `--max-tokens` for a model in this process."""

NUM_SPECULATIVE_TOKENS = 2
"""The default number of draft tokens of a step. Each costs a pass of the output head."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All options of a session. None leaves a choice to the checkpoint.

    Attributes:
        model: a folder, "pico" or a repository (owner/name) on the Hub; with `server`, the
            server's name of the model.
        revision: the branch, tag or commit of a repository.
        ops: the implementation of the maths.
        dtype: the dtype of the arithmetic.
        split: the division of the model among several processes; see `Split.parse`.
        system: the system message.
        max_tokens: the most tokens of one answer, reasoning included; None for the default, which
            is the server's with `server`, and MAX_TOKENS otherwise.
        temperature: the divisor of the logits; 0 is greedy decoding.
        top_k: the number of likeliest tokens to choose from; 0 for all.
        top_p: the probability mass of the likeliest tokens to choose from.
        min_p: the minimum probability of a token, as a fraction of the likeliest token's.
        repetition_penalty: the penalty for repeated tokens; above 1 makes repetition less likely.
        seed: the seed of the first answer. Each later answer adds one.
        stop: strings that end an answer.
        kv_bits: the bits of each cached key or value component; None for no quantization.
        max_model_len: a limit on the context, below the model's own.
        draft_model: "mtp" for draft tokens from the draft head of the model; None for none.
        num_speculative_tokens: the most draft tokens of a step; None for the default.
        enable_thinking: the `enable_thinking` of the chat template; None for its default.
        server: the URL of a server to chat with; None loads the model in this process.
        api_key: the API key of the server; None without `server`.

    Raises:
        UsageError: a value is out of its range, or an option lacks the option that it needs.
    """

    model: str = "pico"
    revision: str | None = None
    ops: str = "auto"
    dtype: str = "auto"
    split: str = "heads"
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    kv_bits: int | None = None
    max_model_len: int | None = None
    draft_model: str | None = None
    num_speculative_tokens: int | None = None
    enable_thinking: bool | None = None
    server: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check every range. Comparisons with NaN are false, so NaN fails each check."""
        if self.max_tokens is not None:
            _check("--max-tokens", self.max_tokens, "at least 1", self.max_tokens >= 1)
        if self.temperature is not None:
            valid = 0 <= self.temperature <= 1e10
            _check("--temperature", self.temperature, "from 0 to 1e10", valid)
        if self.top_k is not None:
            valid = 0 <= self.top_k < 2**31
            _check("--top-k", self.top_k, "from 0 (all tokens) to 2^31 - 1", valid)
        if self.top_p is not None:
            _check("--top-p", self.top_p, "above 0 and at most 1", 0 < self.top_p <= 1)
        if self.min_p is not None:
            _check("--min-p", self.min_p, "from 0 to 1", 0 <= self.min_p <= 1)
        penalty = self.repetition_penalty
        if penalty is not None:
            valid = 1e-10 <= penalty <= 1e10
            _check("--repetition-penalty", penalty, "from 1e-10 to 1e10 (1 is off)", valid)
        if self.seed is not None:
            _check("--seed", self.seed, "from 0 to 2^64 - 1", 0 <= self.seed < 2**64)
        if "" in self.stop:
            raise UsageError("--stop: expected at least one character, got an empty string")
        if self.kv_bits is not None:
            _check("--kv-bits", self.kv_bits, "4 or 8", self.kv_bits in KV_BITS)
        if self.max_model_len is not None:
            valid = self.max_model_len >= 2
            _check("--max-model-len", self.max_model_len, "at least 2 tokens", valid)
        self._check_drafts()
        if self.server is not None:
            self._check_server(self.server)
        elif self.api_key is not None:
            raise UsageError("--api-key: expected --server URL with it")
        self._check_arithmetic()

    @property
    def answer_tokens(self) -> int:
        """The most tokens of an answer: MAX_TOKENS without `max_tokens`."""
        return self.max_tokens or MAX_TOKENS

    @property
    def draft_tokens(self) -> int:
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
        from tinyllm_kernels.arithmetic import DTYPES, OPS

        _check("--ops", self.ops, f"one of {', '.join(OPS)}", self.ops in OPS)
        _check("--dtype", self.dtype, f"one of {', '.join(DTYPES)}", self.dtype in DTYPES)

    def _check_drafts(self) -> None:
        """Check the options of speculation."""
        if self.draft_model not in (None, DRAFT_HEAD):
            raise UsageError(
                f"--draft-model: expected {DRAFT_HEAD}, the draft head of the model, got "
                f"{self.draft_model}: smaller models draft in `serve` alone"
            )
        number = self.num_speculative_tokens
        if number is not None:
            _check("--num-speculative-tokens", number, "from 1 to 64", 1 <= number <= 64)
            if self.draft_model is None:
                raise UsageError(
                    f"--num-speculative-tokens: expected --draft-model {DRAFT_HEAD} with it"
                )

    def _check_server(self, server: str) -> None:
        """Refuse options that only the server can set."""
        valid = server.startswith(("http://", "https://"))
        _check("--server", server, "a URL such as http://127.0.0.1:8000", valid)
        for option, given in (
            ("--ops", self.ops != "auto"),
            ("--dtype", self.dtype != "auto"),
            ("--split", self.split != "heads"),
            ("--kv-bits", self.kv_bits is not None),
            ("--max-model-len", self.max_model_len is not None),
            ("--draft-model", self.draft_model is not None),
            ("--revision", self.revision is not None),
        ):
            if given:
                raise UsageError(
                    f"{option}: not allowed with --server, which has loaded the model already"
                )


def _check(option: str, value: str | float | int, allowed: str, valid: bool) -> None:
    if not valid:
        raise UsageError(f"{option}: expected {allowed}, got {value}")
