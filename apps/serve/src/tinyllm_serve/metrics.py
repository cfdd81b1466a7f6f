"""What Prometheus reads at /metrics."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from tinyllm_engine import EngineStats

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

_GAUGES = {
    "running": "Requests that hold pages.",
    "waiting": "Requests that wait for pages.",
    "pages_total": "Pages of keys and values.",
    "pages_used": "Pages that requests hold.",
    "pages_cached": "Pages that only the prefix cache holds.",
}
_COUNTERS = {
    "prompt_tokens": "Tokens of prompts.",
    "cached_tokens": "Tokens of prompts that the prefix cache had.",
    "generated_tokens": "Tokens generated.",
    "preemptions": "Requests that had to give their pages back for a while.",
    "draft_tokens": "Draft tokens verified.",
    "accepted_tokens": "Draft tokens accepted.",
    "failed_steps": "Steps that failed and were computed again.",
}


class Metrics:
    """Counts of this server, in a registry of its own.

    Attributes:
        requests: finished HTTP requests, by path and status.
        in_flight: HTTP requests under way.
        request_seconds: from a request's arrival to its response's end, by path.
        first_token_seconds: from a request to its first token.
        between_tokens_seconds: between two tokens of an answer.
    """

    def __init__(self, stats: Callable[[], EngineStats | None]) -> None:
        """Start at zero.

        Args:
            stats: the engine's own counts; None as long as there is no engine.
        """
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(stats))
        self.requests = Counter(
            "tinyllm_http_requests",
            "Finished HTTP requests.",
            ["path", "status"],
            registry=self._registry,
        )
        self.in_flight = Gauge(
            "tinyllm_http_requests_in_flight", "HTTP requests under way.", registry=self._registry
        )
        self.request_seconds = Histogram(
            "tinyllm_http_request_seconds",
            "From a request's arrival to its response's end.",
            ["path"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.first_token_seconds = self._histogram(
            "tinyllm_first_token_seconds", "From a request to its first token."
        )
        self.between_tokens_seconds = self._histogram(
            "tinyllm_between_tokens_seconds", "Between two tokens of an answer."
        )

    def text(self) -> bytes:
        """All counts in Prometheus's format."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, meaning: str) -> Histogram:
        return Histogram(name, meaning, buckets=_SECONDS, registry=self._registry)


class _EngineCollector(Collector):
    """The engine's counts, read when they are asked for."""

    def __init__(self, stats: Callable[[], EngineStats | None]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if stats is None:
            return
        for name, meaning in _GAUGES.items():
            yield GaugeMetricFamily(f"tinyllm_{name}", meaning, getattr(stats, name))
        for name, meaning in _COUNTERS.items():
            yield CounterMetricFamily(f"tinyllm_{name}", meaning, getattr(stats, name))
