"""What was asked for on the command line, checked."""

from dataclasses import dataclass, field

from tinyllm_kernels.arithmetic import DTYPES, OPS

from tinyllm_serve.errors import UsageError

KV_BITS = (4, 8)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All options of a server.

    Attributes:
        model: a folder, "pico" or the name of a repository on the Hub.
        revision: branch, tag or commit of a repository.
        name: how clients call the model; None is the last part of `model`.
        ops: which implementation of the maths.
        dtype: of the arithmetic.
        host: the address to listen on.
        port: the port; 0 lets the system choose.
        api_keys: one of them must be sent; without any, everybody may ask.
        cors_origins: web pages that may ask, besides the server's own.
        max_tokens: of an answer, where the client does not say.
        max_body: bytes of a request's body at most.
        max_running: requests that are computed at a time.
        max_waiting: requests that may wait for that.
        memory: bytes for the keys and values of all requests; None leaves it to the engine.
        kv_bits: width of keys and values.
        prefix_cache: whether prompts that begin alike share what was computed.
        speculation: tokens guessed at most ahead of each token; 0 guesses nothing.
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
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    cors_origins: tuple[str, ...] = ()
    max_tokens: int = 4096
    max_body: int = 10_000_000
    max_running: int = 32
    max_waiting: int = 256
    memory: int | None = None
    kv_bits: int | None = None
    prefix_cache: bool = True
    speculation: int = 0
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
        _within("--speculation", self.speculation, "from 0 to 64", 0 <= self.speculation <= 64)
        fine = 0 < self.keep_alive < 3600
        _within("--keep-alive", self.keep_alive, "above 0 and below 3600 seconds", fine)
        _within("--drain", self.drain, "from 0 to 3600 seconds", 0 <= self.drain <= 3600)
        for origin in self.cors_origins:
            fine = origin == "*" or "://" in origin
            _within("--cors-origin", origin, "* or an origin such as https://example.org", fine)
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise UsageError("--api-key: expected printable characters without spaces")

    @property
    def served_name(self) -> str:
        """How clients call the model."""
        return self.name or self.model.rstrip("/").rpartition("/")[2] or self.model


def _within(option: str, value: str | float | int, allowed: str, holds: bool) -> None:
    if not holds:
        raise UsageError(f"{option}: expected {allowed}, got {value}")
