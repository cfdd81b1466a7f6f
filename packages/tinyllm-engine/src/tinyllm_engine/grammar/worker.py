"""The thread that compiles grammars, for all requests and tenants."""

from __future__ import annotations

MAX_SECONDS = 10.0
"""The most seconds that a caller waits for a grammar, its time in the queue included."""

MAX_QUEUED = 16
"""The most grammars of one tenant in the queue. Equal grammars count once."""

_STACK_BYTES = 512 << 20
"""The stack of the thread. llguidance recurses as deep as a grammar is long: a chain of 1,000
references needs the 8 MiB of an ordinary thread. Pages of the stack that are never used cost
nothing."""

_MAX_CACHED = 128
_MAX_CACHED_SECONDS = 2.0
"""Seconds of compiling that the cached grammars took together. They are the measure of memory,
which llguidance does not tell: a grammar holds at most 180 MB for each second of its compiler."""
