"""The clients of a server: one for each API key, or one for each connection without keys."""

import hashlib
import logging
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tinyllm_cli.api_key import is_valid_key
from tinyllm_cli.messages import UsageError

MAX_PRIORITY = 1000

MAX_FILE_CHARACTERS = 1_000_000
"""The most characters of a key file, some 10,000 keys. A device such as /dev/zero has no end."""

_FIELDS = ("name", "key", "weight", "max_priority", "limit")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Client:
    """A client that shares the engine with other clients.

    Attributes:
        name: the name of the client's key, for the log; empty without keys.
        tenant: the name by which the engine shares its time: the key, or the connection.
        weight: the client's share of the engine's time in relation to other clients.
        max_priority: the client's requests may have priorities from `-max_priority`.
        cache_salt: only requests with equal salts share pages of the prefix cache.
        limit: the most requests in progress, or None.
    """

    name: str = ""
    tenant: str = ""
    weight: float = 1.0
    max_priority: int = 0
    cache_salt: str = ""
    limit: int | None = None

    def salt(self, requested: str | None) -> str:
        """Return the salt of a request, which may ask for a salt of its own in addition."""
        return f"{self.cache_salt}/{requested}" if requested else self.cache_salt


@dataclass(frozen=True, kw_only=True)
class KeyEntry:
    """A key and the limits of its client, as a table of the key file has them."""

    name: str
    key: str
    weight: float = 1.0
    max_priority: int | None = None
    limit: int | None = None

    def client(self, max_priority: int, *, share_prefix_cache: bool) -> Client:
        """Return the client of this key; `max_priority` is the default for all keys."""
        # A hash of the key stays the same over a restart, so that a saved prefix cache is found.
        digest = hashlib.sha256(b"tinyllm prefix cache\0" + self.key.encode()).hexdigest()
        return Client(
            name=self.name,
            tenant=self.name,
            weight=self.weight,
            max_priority=max_priority if self.max_priority is None else self.max_priority,
            cache_salt="" if share_prefix_cache else digest[:32],
            limit=self.limit,
        )


def read_keys(path: Path) -> list[KeyEntry]:
    """Read a key file: TOML with a table `[[keys]]` for each key.

    `check_distinct` compares the keys, because the command line may add further ones.

    Raises:
        UsageError: if the file cannot be read, or a table is wrong. No message has a key.
    """
    try:
        with path.open(encoding="utf-8") as file:  # a pipe too, such as <(command) of a shell
            text = file.read(MAX_FILE_CHARACTERS + 1)
        readable = path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"--api-key-file: cannot read {path}: {reason}") from None
    if len(text) > MAX_FILE_CHARACTERS:
        raise UsageError(
            f"--api-key-file: {path}: expected at most {MAX_FILE_CHARACTERS:,} characters"
        )
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = str(error).rpartition("(")[2].rstrip(")")  # the rest may quote a key
        raise UsageError(f"--api-key-file: {path}: not TOML ({position})") from None
    tables = content.get("keys")
    if content.keys() != {"keys"} or not isinstance(tables, list) or not tables:
        raise _wrong("expected tables [[keys]] and nothing else")
    entries = [_entry(number, table) for number, table in enumerate(tables, 1)]
    if readable:
        _log.warning(
            "other users of this machine can read the API keys",
            extra={"fields": {"file": str(path), "remedy": "chmod 600"}},
        )
    return entries


def check_distinct(entries: Iterable[KeyEntry]) -> None:
    """Raise UsageError if two keys are equal or have the same name."""
    names: set[str] = set()
    name_of_key: dict[str, str] = {}
    for entry in entries:
        if entry.name in names:
            raise _wrong(f"expected one key with the name {entry.name!r}, got two")
        if entry.key in name_of_key:
            raise _wrong(f"{name_of_key[entry.key]} and {entry.name}: expected different keys")
        names.add(entry.name)
        name_of_key[entry.key] = entry.name


def _entry(number: int, table: object) -> KeyEntry:
    where = f"key {number}"
    if not isinstance(table, Mapping):
        raise _wrong(f"{where}: expected a table [[keys]]")
    unknown = [name for name in table if name not in _FIELDS]
    if unknown:
        raise _wrong(f"{where}: expected {', '.join(_FIELDS)}, got {str(unknown[0])[:40]!r}")
    name, key = table.get("name"), table.get("key")
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= 64:
        raise _wrong(f"{where}: name: expected 1 to 64 printable characters")
    if not isinstance(key, str) or not is_valid_key(key):
        raise _wrong(f"{name}: key: expected printable characters without spaces")
    return KeyEntry(
        name=name,
        key=key,
        weight=_number(table, name, "weight", 0.001, 1000) or 1.0,
        max_priority=_integer(table, name, "max_priority", 0, MAX_PRIORITY),
        limit=_integer(table, name, "limit", 1, 1_000_000),
    )


def _number(
    table: Mapping[str, object], name: str, field: str, low: float | int, high: float | int
) -> float | None:
    value = table.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _wrong(f"{name}: {field}: expected a number from {low:g} to {high:g}, got {value!r}")
    return float(value)


def _integer(table: Mapping[str, object], name: str, field: str, low: int, high: int) -> int | None:
    value = _number(table, name, field, low, high)
    if value is not None and not value.is_integer():
        raise _wrong(f"{name}: {field}: expected a whole number, got {value!r}")
    return None if value is None else int(value)


def _wrong(reason: str) -> UsageError:
    return UsageError(f"--api-key-file: {reason}")
