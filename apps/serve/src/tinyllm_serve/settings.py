"""What was asked for on the command line, checked."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tinyllm_kernels.arithmetic import DTYPES, OPS

from tinyllm_serve.errors import UsageError
from tinyllm_serve.host_check import is_loopback

KV_BITS = (4, 8)
DRAFTED = 4
"""Tokens that a draft model guesses, unless it is told how many."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All options of a server.

    Attributes:
        model: a folder, "pico" or the name of a repository on the Hub.
        revision: branch, tag or commit of a repository.
        name: how clients call the model; None is the last part of `model`.
        ops: which implementation of the maths.
        dtype: of the arithmetic.
        split: what each of several processes has of the model; see `tinyllm_qwen.split`.
        host: the address to listen on.
        port: the port; 0 lets the system choose.
        api_keys: one of them must be sent; without any, everybody may ask.
        cors_origins: web pages that may ask, besides the server's own.
        allowed_hosts: names by which clients may ask for this server, beside `host` and those that
            mean the machine itself; with any of them others are refused wherever it listens.
        max_tokens: of an answer, where the client does not say.
        max_body: bytes of a request's body at most.
        max_running: requests that are computed at a time.
        max_waiting: requests that may wait for that.
        memory: bytes for the keys and values of all requests; None leaves it to the engine.
        kv_bits: width of keys and values.
        page_size: tokens that a page of keys and values holds.
        prefill_tokens: tokens of prompts that a step computes at most.
        step_seconds: how long prompts may keep those waiting who are being answered.
        prefix_cache: whether prompts that begin alike share what was computed.
        prefix_memory: bytes that the shared beginnings may take while nobody uses them; None is
            all of `memory`.
        prefix_path: a file in which they survive a restart.
        draft_model: a smaller model of the same tokenizer that guesses what the model will say: a
            folder, "pico" or the name of a repository on the Hub.
        speculation: tokens guessed at most ahead of each token, by a draft model or from what the
            text has said before; None is `DRAFTED` with a draft model and 0, no guesses, without.
        keep_alive: seconds of silence after which a stream gets a comment.
        drain: seconds that running answers have after SIGTERM.

    Raises:
        UsageError: a value is out of its range.
    """

    model: str = "pico"
    revision: str | None = None
    name: str | None = None
    ops: str = "auto"
    dtype: str = "auto"
    split: str = "heads"
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_tokens: int = 4096
    max_body: int = 10_000_000
    max_running: int = 32
    max_waiting: int = 256
    memory: int | None = None
    kv_bits: int | None = None
    page_size: int = 32
    prefill_tokens: int = 512
    step_seconds: float = 0.25
    prefix_cache: bool = True
    prefix_memory: int | None = None
    prefix_path: Path | None = None
    draft_model: str | None = None
    speculation: int | None = None
    keep_alive: float = 10.0
    drain: float = 30.0

    def __post_init__(self) -> None:
        """Check every range. A comparison with NaN is false, so that NaN fails each of these."""
        _within("--ops", self.ops, f"one of {', '.join(OPS)}", self.ops in OPS)
        _within("--dtype", self.dtype, f"one of {', '.join(DTYPES)}", self.dtype in DTYPES)
        _within("--port", self.port, "from 0 to 65535", 0 <= self.port < 2**16)
        _within("--max-tokens", self.max_tokens, "at least 1", self.max_tokens >= 1)
        _within("--max-body", self.max_body, "at least 1000 bytes", self.max_body >= 1000)
        _within("--max-running", self.max_running, "from 1 to 1024", 1 <= self.max_running <= 1024)
        _within("--max-waiting", self.max_waiting, "at least 0", self.max_waiting >= 0)
        if self.memory is not None:
            _within("--memory", self.memory, "at least 1 byte", self.memory >= 1)
        if self.kv_bits is not None:
            _within("--kv-bits", self.kv_bits, "4 or 8", self.kv_bits in KV_BITS)
        _within("--page-size", self.page_size, "from 1 to 4096", 1 <= self.page_size <= 4096)
        fine = 2 <= self.prefill_tokens <= 1 << 20
        _within("--prefill-tokens", self.prefill_tokens, f"from 2 to {1 << 20}", fine)
        fine = 0 < self.step_seconds <= 60
        _within("--step-seconds", self.step_seconds, "above 0 and up to 60", fine)
        self._check_prefixes()
        self._check_guesses()
        fine = 0 < self.keep_alive < 3600
        _within("--keep-alive", self.keep_alive, "above 0 and below 3600 seconds", fine)
        _within("--drain", self.drain, "from 0 to 3600 seconds", 0 <= self.drain <= 3600)
        for origin in self.cors_origins:
            fine = origin == "*" or "://" in origin
            _within("--cors-origin", origin, "* or an origin such as https://example.org", fine)
        for name in self.allowed_hosts:
            fine = ":" not in name and urlsplit(f"//{name}").hostname == name.lower()
            _within("--allowed-host", name, "a name alone, such as example.org", fine)
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise UsageError("--api-key: expected printable characters without spaces")

    @property
    def host_names(self) -> tuple[str, ...] | None:
        """The names that a request's Host may have; None where it does not matter.

        It does on a loopback address without keys: there, whoever can make a browser send a request
        can ask. See `HostCheck`.
        """
        if not self.allowed_hosts and (self.api_keys or not is_loopback(self.host)):
            return None
        return (self.host, *self.allowed_hosts)

    @property
    def guesses(self) -> int:
        """How many tokens are guessed ahead."""
        if self.speculation is not None:
            return self.speculation
        return 0 if self.draft_model is None else DRAFTED

    def _check_prefixes(self) -> None:
        """Refuse what would be kept nowhere."""
        if self.prefix_memory is not None:
            _within("--prefix-memory", self.prefix_memory, "at least 0", self.prefix_memory >= 0)
        if self.prefix_path is not None:
            if not self.prefix_cache:
                raise UsageError("--prefix-path: expected none with --no-prefix-cache")
            fine = not self.prefix_path.is_dir()
            _within("--prefix-path", str(self.prefix_path), "a file, not a folder", fine)

    def _check_guesses(self) -> None:
        """Refuse a draft model that nobody asks."""
        _within("--speculation", self.guesses, "from 0 to 64", 0 <= self.guesses <= 64)
        if self.draft_model is not None:
            fine = self.guesses > 0
            _within("--speculation", self.guesses, "at least 1 with --draft-model", fine)

    @property
    def served_name(self) -> str:
        """How clients call the model."""
        return self.name or self.model.rstrip("/").rpartition("/")[2] or self.model


def _within(option: str, value: str | float | int, allowed: str, holds: bool) -> None:
    if not holds:
        raise UsageError(f"{option}: expected {allowed}, got {value}")
