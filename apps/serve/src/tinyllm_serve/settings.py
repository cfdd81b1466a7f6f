"""The options of `serve`: each is declared once, with its help, default and bounds."""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_type_hints
from urllib.parse import urlsplit

from tinyllm_cli.api_key import is_valid_key
from tinyllm_cli.messages import UsageError
from tinyllm_cli.program import version_option
from typer import Option

from tinyllm_serve.clients import MAX_PRIORITY, Client, KeyEntry, check_distinct, read_keys
from tinyllm_serve.http.loopback import is_loopback
from tinyllm_serve.options import ModelOptions, Range, check, option

NUM_SPECULATIVE_TOKENS = 4
"""The default number of draft tokens ahead of each token, with a draft model."""

DRAFT_HEAD, NUM_HEAD_TOKENS = "mtp", 2
"""The `draft_model` that means the model's own draft head, and its default number of tokens."""

AFFINITY = 8
"""The default of --affinity: requests that a replica may have more than another, and still get the
prompts whose prefix it has cached."""

MAX_REPLICAS = 256


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\sA-Z]+")
"""An origin as browsers send it: a scheme and a host in lower case, without a path."""


@dataclass(frozen=True, kw_only=True)
class Settings(ModelOptions):
    """All options of a server. Typer reads the command line from these fields.

    Options with two names keep their older name as the second one.

    Raises:
        UsageError: if a value is out of its range, or two options exclude each other.
    """

    host: Annotated[
        str, option("ADDRESS", "Address to listen on; 0.0.0.0 is every network of the machine.")
    ] = "127.0.0.1"
    port: Annotated[int, option("N", "Port; 0 lets the system choose."), Range(0, 65535)] = 8000
    api_key: Annotated[
        list[str] | None,
        Option(
            metavar="KEY",
            envvar="TINYLLM_API_KEY",
            help="Key that clients must send; may be repeated. Other users of the machine can "
            "see it on the command line, but not in the environment.",
        ),
    ] = field(default=None, repr=False)
    api_key_file: Annotated[
        Path | None, option("FILE", "TOML file of keys with names, weights and limits.")
    ] = None
    allow_anonymous: Annotated[
        bool,
        Option("--allow-anonymous", help="Listen without keys on an address other than loopback."),
    ] = False
    max_priority: Annotated[
        int,
        option("N", "Requests may have a `priority` from -N: lower numbers come sooner."),
        Range(0, MAX_PRIORITY),
    ] = 0
    allowed_origins: Annotated[
        list[str] | None,
        option(
            "ORIGIN",
            "Origin of web pages that may send requests (CORS); may be repeated.",
            "--allowed-origins/--cors-origin",
        ),
    ] = None
    allowed_host: Annotated[
        list[str] | None, option("NAME", "Further name of this server in Host; may be repeated.")
    ] = None
    max_tokens: Annotated[
        int | None,
        option("N", "Tokens of an answer, by default. [default: the rest of the context]"),
        Range(1),
    ] = None
    max_body: Annotated[int, option("BYTES", "Longest request body."), Range(1000)] = 10_000_000
    max_body_memory: Annotated[
        int,
        option("BYTES", "Most bytes of all request bodies and embeddings in memory."),
        Range(1_000_000),
    ] = 128_000_000
    max_connections: Annotated[int, option("N", "Most open connections."), Range(1, 100_000)] = 1000
    timeout_headers: Annotated[
        float, option("S", "Seconds in which the headers of a request must come."), Range(0.1, 3600)
    ] = 10.0
    timeout_body: Annotated[
        float, option("S", "Seconds in which the body of a request must come."), Range(0.1, 3600)
    ] = 60.0
    timeout_write: Annotated[
        float,
        option("S", "Seconds after which a client that does not read is disconnected."),
        Range(0.1, 3600),
    ] = 60.0
    timeout_keep_alive: Annotated[
        int, option("S", "Seconds that a connection may be idle between requests."), Range(1, 3600)
    ] = 5
    allow_special_tokens: Annotated[
        bool,
        Option(
            "--allow-special-tokens",
            help="Encode <|im_end|> and the like in messages as control tokens, not as text.",
        ),
    ] = False
    max_num_seqs: Annotated[
        int,
        option("N", "Requests that are computed at a time.", "--max-num-seqs/--max-running"),
        Range(1, 1024),
    ] = 32
    max_waiting: Annotated[
        int, option("N", "Requests in the queue; one more gets a 429."), Range(0)
    ] = 256
    kv_cache_memory: Annotated[
        float | None,
        option(
            "GB",
            "Memory for keys, values and recurrent states, allocated at the start. [default: for "
            "--max-num-seqs contexts, at most 4 GiB or one context, and half of the free memory]",
            "--kv-cache-memory/--memory",
        ),
        Range(0.001, 1_000_000),
    ] = None
    kv_bits: Annotated[int | None, option("4|8", "Quantize keys and values.")] = None
    page_size: Annotated[
        int,
        option("N", "Tokens in a page (block) of keys and values.", "--page-size/--block-size"),
        Range(1, 4096),
    ] = 32
    max_num_batched_tokens: Annotated[
        int,
        option(
            "N",
            "Prompt tokens that one step computes at most.",
            "--max-num-batched-tokens/--prefill-tokens",
        ),
        Range(1, 1 << 20),
    ] = 512
    step_seconds: Annotated[
        float,
        option("S", "Target for the seconds that running answers wait for new prompts."),
        Range(0.001, 60),
    ] = 0.25
    enable_prefix_caching: Annotated[
        bool,
        Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            " /--no-prefix-cache",
            help="Reuse the keys and values of prefixes that prompts share.",
        ),
    ] = True
    share_prefix_cache: Annotated[
        bool,
        Option(
            "--share-prefix-cache",
            help="Share cached prefixes between API keys. A key can then find out by the time of "
            "an answer that another key sent the same prefix.",
        ),
    ] = False
    prefix_cache_memory: Annotated[
        float | None,
        option(
            "GB",
            "Memory for prefixes that no request uses now. [default: all for keys and values]",
            "--prefix-cache-memory/--prefix-memory",
        ),
        Range(0, 1_000_000),
    ] = None
    snapshot_memory: Annotated[
        float | None,
        option(
            "GB",
            "Memory for snapshots of recurrent states, at which models with recurrent layers "
            "(Qwen3.5) continue prefixes. [default: at most a quarter of --kv-cache-memory]",
        ),
        Range(0, 1_000_000),
    ] = None
    prefix_cache_path: Annotated[
        Path | None,
        option(
            "FILE",
            "File that keeps the prefix cache over a restart.",
            "--prefix-cache-path/--prefix-path",
        ),
    ] = None
    draft_model: Annotated[
        str | None,
        option("ID|mtp", "Model that proposes draft tokens; mtp: the model's own draft head."),
    ] = None
    num_speculative_tokens: Annotated[
        int | None,
        option(
            "N",
            "Draft tokens ahead of each token; the text stays the same. "
            "[default: 4 with --draft-model, 2 with mtp, otherwise 0]",
            "--num-speculative-tokens/--speculation",
        ),
        Range(0, 64),
    ] = None
    sse_keep_alive: Annotated[
        float,
        option(
            "S",
            "Seconds of silence after which a stream gets a comment.",
            "--sse-keep-alive/--keep-alive",
        ),
        Range(0.001, 3600),
    ] = 10.0
    timeout_graceful_shutdown: Annotated[
        float,
        option(
            "S",
            "Seconds that running answers have after SIGTERM.",
            "--timeout-graceful-shutdown/--drain",
        ),
        Range(0, 3600),
    ] = 30.0
    ray: Annotated[
        bool, Option("--ray", help="Run replicas of the model on Ray Serve; see --replicas.")
    ] = False
    replicas: Annotated[
        str | None, option("N|N-M", "Number of replicas; a range scales with the load.")
    ] = None
    affinity: Annotated[
        int | None,
        option(
            "N",
            "Requests that a replica may have more than another and still get the prompts whose "
            "prefix it has cached; 0 balances the load alone. [default: 8]",
        ),
        Range(0, 1024),
    ] = None
    update: Annotated[
        bool, Option("--update", help="Replace the replicas of the running 'serve --ray'.")
    ] = False
    version: Annotated[bool, version_option("serve")] = False

    def __post_init__(self) -> None:
        """Check every option."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            for bounds in getattr(hint, "__metadata__", ()):
                if isinstance(bounds, Range) and value is not None:
                    check(name, value, str(bounds), bounds.low <= value <= bounds.high)
        for name in (self.model, *self.model_names):
            # JSON is UTF-8. Other bytes of the command line are lone surrogates in Python.
            is_text = name.encode(errors="ignore").decode() == name
            which = "model" if name == self.model else "served_model_name"
            check(which, repr(name), "a name in UTF-8", is_text)
        if self.kv_bits is not None:
            check("kv_bits", self.kv_bits, "4 or 8", self.kv_bits in (4, 8))
        self._check_backend()
        self._check_clients()
        self._check_prefix_cache()
        if self.draft_model is not None:
            number = self.num_draft_tokens
            check("num_speculative_tokens", number, "from 1 to 64 with --draft-model", number > 0)
        if self.ray:
            _ = self.replica_range  # raises UsageError if the option is not valid
        elif self.replicas is not None or self.affinity is not None or self.update:
            raise UsageError("--replicas, --affinity, --update: expected --ray with them")

    @property
    def has_keys(self) -> bool:
        """True if requests need an API key."""
        return bool(self.api_key) or self.api_key_file is not None

    def clients(self) -> dict[str, Client]:
        """Return the client of each key, those of the key file included.

        Raises:
            UsageError: if the key file is wrong.
        """
        entries = [
            KeyEntry(name=f"key-{number}", key=key)
            for number, key in enumerate(dict.fromkeys(self.api_key or ()), 1)
        ]
        if self.api_key_file is not None:
            entries += read_keys(self.api_key_file)
            check_distinct(entries)
        share = self.share_prefix_cache
        return {
            entry.key: entry.client(self.max_priority, share_prefix_cache=share)
            for entry in entries
        }

    @property
    def host_names(self) -> tuple[str, ...] | None:
        """The names that the Host header may have; None if any name is allowed.

        Names are checked if the server listens on a loopback address without keys, or if
        `allowed_host` is given. See `HostCheck`.
        """
        if not self.allowed_host and (self.has_keys or not is_loopback(self.host)):
            return None
        return (self.host, *(self.allowed_host or ()))

    @property
    def num_draft_tokens(self) -> int:
        """The number of draft tokens ahead of each token."""
        if self.num_speculative_tokens is not None:
            return self.num_speculative_tokens
        if self.draft_model is None:
            return 0
        return NUM_HEAD_TOKENS if self.draft_model == DRAFT_HEAD else NUM_SPECULATIVE_TOKENS

    @property
    def replica_range(self) -> tuple[int, int]:
        """The smallest and the largest number of replicas."""
        text = "1" if self.replicas is None else self.replicas
        first, dash, last = text.partition("-")
        numbers = [first, last] if dash else [first, first]
        if all(number.isdecimal() and len(number) <= 3 for number in numbers):
            low, high = map(int, numbers)
            if 1 <= low <= high <= MAX_REPLICAS:
                return low, high
        raise UsageError(
            f"--replicas: expected from 1 to {MAX_REPLICAS}, or a range such as 1-4, got {text!r}"
        )

    def _check_backend(self) -> None:
        # Here, because the import loads MLX, which `serve --help` does not need.
        from tinyllm_kernels.backend_choice import DTYPES, OPS

        check("ops", self.ops, f"one of {', '.join(OPS)}", self.ops in OPS)
        check("dtype", self.dtype, f"one of {', '.join(DTYPES)}", self.dtype in DTYPES)

    def _check_clients(self) -> None:
        for origin in self.allowed_origins or ():
            valid = origin == "*" or _ORIGIN.fullmatch(origin) is not None
            expected = "* or an origin without a path, such as https://a.example"
            check("allowed_origins", origin, expected, valid)
        for name in self.allowed_host or ():
            valid = not set(":[]") & set(name) and urlsplit(f"//{name}").hostname == name.lower()
            check("allowed_host", name, "a name alone, such as a.example", valid)
        if not all(map(is_valid_key, self.api_key or ())):
            raise UsageError("--api-key: expected printable characters without spaces")
        anonymous = not self.has_keys and not self.allow_anonymous
        if anonymous and not is_loopback(self.host):
            raise UsageError(
                f"--host: expected a key for {self.host}, which other machines can reach: set "
                "TINYLLM_API_KEY or --api-key-file, or allow everyone with --allow-anonymous"
            )

    def _check_prefix_cache(self) -> None:
        path = self.prefix_cache_path
        if not self.enable_prefix_caching:
            for name in ("prefix_cache_path", "prefix_cache_memory", "snapshot_memory"):
                if getattr(self, name) is not None:
                    dashed = name.replace("_", "-")
                    raise UsageError(f"--{dashed}: expected none with --no-enable-prefix-caching")
        if path is not None:
            # At its end the server replaces this file, even a device.
            try:
                is_file = stat.S_ISREG(path.stat().st_mode)
            except (FileNotFoundError, NotADirectoryError):
                is_file = True
            except OSError as error:  # the name is too long, for example
                reason = f"{error.strerror}: name another file, got {str(path)[:200]}"
                raise UsageError(f"--prefix-cache-path: {reason}") from None
            check("prefix_cache_path", str(path), "a file, not a folder or a device", is_file)
            folder = next(parent for parent in path.absolute().parents if parent.exists())
            is_writable = folder.is_dir() and os.access(folder, os.W_OK)
            check("prefix_cache_path", str(path), "a file in a writable folder", is_writable)
