"""What a server holds on to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import httpx
import psutil

SLACK = 0.05
"""By how much memory may have grown: allocators keep what they had, in pieces."""


@dataclass(frozen=True)
class Vitals:
    """A server's process and its engine at one moment.

    Attributes:
        memory: bytes that are resident.
        pages: pages of keys and values that requests hold.
        running: requests that are computed.
        waiting: requests that wait.
        in_flight: HTTP requests under way, that of these vitals among them.
        handles: files and sockets that are open.
        sockets: those among them that are of the network.
        threads: of the process.
    """

    memory: int
    pages: int
    running: int
    waiting: int
    in_flight: int
    handles: int
    sockets: int
    threads: int

    @classmethod
    def of(cls, url: str, process: int) -> Vitals:
        """Take them."""
        counts = _counts(httpx.get(f"{url}/metrics", timeout=60).text)
        seen = psutil.Process(process)
        with seen.oneshot():
            return cls(
                memory=seen.memory_info().rss,
                pages=int(counts["tinyllm:kv_cache_pages_used"]),
                running=int(counts["tinyllm:num_requests_running"]),
                waiting=int(counts["tinyllm:num_requests_waiting"]),
                in_flight=int(counts["tinyllm:http_requests_in_flight"]),
                # Sockets first: the last one to close must not be counted as a handle.
                sockets=len(seen.net_connections()),
                handles=seen.num_fds(),
                threads=seen.num_threads(),
            )

    @property
    def is_idle(self) -> bool:
        """Whether nobody is being served."""
        return self.running == self.waiting == self.pages == 0 and self.in_flight == 1

    def grown(self, before: Vitals) -> list[str]:
        """What is more than it was, a line each."""
        lines = []
        for each in fields(self):
            was, now = int(getattr(before, each.name)), int(getattr(self, each.name))
            if now > (was * (1 + SLACK) if each.name == "memory" else was):
                lines.append(f"{each.name}: {was:,} before, {now:,} after")
        return lines


def highest(*all_of_them: Vitals) -> Vitals:
    """The most of each."""
    names = [each.name for each in fields(Vitals)]
    return Vitals(**{name: max(getattr(each, name) for each in all_of_them) for name in names})


def _counts(text: str) -> Mapping[str, float]:
    """The lines of /metrics that have a name and a number."""
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(number) for name, _, number in pairs}
