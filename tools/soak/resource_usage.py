"""Resource usage of a server: its process and its engine."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import httpx
import psutil

SLACK = 0.05
"""Share by which memory may grow: allocators keep freed memory in fragments."""


@dataclass(frozen=True)
class ResourceUsage:
    """Resource usage at one moment.

    Attributes:
        memory: resident bytes.
        pages: pages of keys and values that requests use.
        running: requests that are computed.
        waiting: requests in the queue.
        in_flight: HTTP requests in flight, including the request for these metrics.
        handles: open files and sockets.
        sockets: open network sockets.
        threads: threads of the process.
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
    def of(cls, url: str, pid: int) -> "ResourceUsage":
        """Read the metrics of a server and its process."""
        counts = _counts(httpx.get(f"{url}/metrics", timeout=60).text)
        process = psutil.Process(pid)
        with process.oneshot():
            return cls(
                memory=process.memory_info().rss,
                pages=int(counts["tinyllm:kv_cache_pages_used"]),
                running=int(counts["tinyllm:num_requests_running"]),
                waiting=int(counts["tinyllm:num_requests_waiting"]),
                in_flight=int(counts["tinyllm:http_requests_in_flight"]),
                # Sockets first: a socket that closes in between must not count as a handle.
                sockets=len(process.net_connections()),
                handles=process.num_fds(),
                threads=process.num_threads(),
            )

    @property
    def is_idle(self) -> bool:
        """True if no request is in progress."""
        return self.running == self.waiting == self.pages == 0 and self.in_flight == 1

    def growth(self, before: "ResourceUsage") -> list[str]:
        """Return one line for each value that has grown."""
        lines = []
        for each in fields(self):
            was, now = int(getattr(before, each.name)), int(getattr(self, each.name))
            if now > (was * (1 + SLACK) if each.name == "memory" else was):
                lines.append(f"{each.name}: {was:,} before, {now:,} after")
        return lines


def highest(*usages: ResourceUsage) -> ResourceUsage:
    """Return the highest of each value."""
    names = [each.name for each in fields(ResourceUsage)]
    return ResourceUsage(**{name: max(getattr(each, name) for each in usages) for name in names})


def _counts(text: str) -> Mapping[str, float]:
    """Parse the lines of /metrics that have a name and a number."""
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(number) for name, _, number in pairs}
