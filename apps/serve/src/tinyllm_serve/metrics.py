"""Metrics for Prometheus. Their names follow vLLM's, with the prefix `tinyllm:`."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from tinyllm_engine import EngineStats

HTTP_PREFIX = "tinyllm:http_"
"""The prefix of HTTP metrics. The listening process counts them, even in front of replicas."""

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

# For each metric: the attribute of `EngineStats`, and the description.
_GAUGES = {
    "num_requests_running": ("running", "Requests that hold pages."),
    "num_requests_waiting": ("waiting", "Requests in the queue."),
    "kv_cache_pages": ("pages_total", "Pages of keys and values."),
    "kv_cache_pages_used": ("pages_used", "Pages that requests hold."),
    "kv_cache_pages_cached": ("pages_cached", "Pages that only the prefix cache holds."),
    "recurrent_states": ("states_total", "Slots for recurrent states of requests."),
    "recurrent_states_used": ("states_used", "Slots for recurrent states that requests hold."),
    "prefix_snapshot_slots": ("snapshots_total", "Slots for snapshots of recurrent states."),
    "prefix_snapshots": ("snapshots_held", "Snapshots from which a prefix can be continued."),
}
_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts."),
    "generation_tokens": ("generated_tokens", "Tokens generated."),
    "prefix_cache_queries": ("prompt_tokens", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("cached_tokens", "Prompt tokens found in the prefix cache."),
    "prefix_snapshot_hits": ("snapshot_hits", "Requests that continued a snapshot."),
    "prefix_snapshot_evictions": ("snapshot_evictions", "Snapshots evicted for others."),
    "num_preemptions": ("preemptions", "Requests that freed their pages, to continue later."),
    "spec_decode_num_draft_tokens": ("draft_tokens", "Draft tokens verified."),
    "spec_decode_num_accepted_tokens": ("accepted_tokens", "Draft tokens accepted."),
    "failed_steps": ("failed_steps", "Steps that failed and were computed again."),
}


class Metrics:
    """The metrics of this server, in a registry of its own."""

    def __init__(
        self, stats: Callable[[], EngineStats | None], *, enable_prefix_caching: bool = True
    ) -> None:
        """Start at zero.

        Args:
            stats: returns the engine's counts, or None while there is no engine.
            enable_prefix_caching: False if the engine looks up no prompt tokens in a prefix cache.
        """
        self._registry = registry = CollectorRegistry()
        registry.register(_EngineCollector(stats, enable_prefix_caching))
        self.http_requests = Counter(
            f"{HTTP_PREFIX}requests",
            "Finished HTTP requests.",
            ["path", "status"],
            registry=registry,
        )
        self.http_requests_in_flight = Gauge(
            f"{HTTP_PREFIX}requests_in_flight", "HTTP requests in progress.", registry=registry
        )
        self.http_request_duration = Histogram(
            f"{HTTP_PREFIX}request_duration_seconds",
            "Time from a request's arrival to its response's end.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.http_connections = Gauge(
            f"{HTTP_PREFIX}connections", "Open connections.", registry=registry
        )
        self.http_connections_closed = Counter(
            f"{HTTP_PREFIX}connections_closed",
            "Connections that the server closed because of a limit.",
            ["reason"],
            registry=registry,
        )
        self.request_success = Counter(
            "tinyllm:request_success",
            "Finished generations; abort is a client that has disconnected.",
            ["finished_reason"],
            registry=registry,
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "Time from a request to its first token."
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "Time between two tokens of an answer."
        )
        self.e2e_request_latency = self._histogram(
            "e2e_request_latency_seconds", "Time from a request to its last token."
        )

    def text(self) -> bytes:
        """Return all metrics in Prometheus's format."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, meaning: str) -> Histogram:
        return Histogram(f"tinyllm:{name}", meaning, buckets=_SECONDS, registry=self._registry)


class _EngineCollector(Collector):
    """The engine's counts, read when Prometheus asks for them."""

    def __init__(
        self, stats: Callable[[], EngineStats | None], enable_prefix_caching: bool
    ) -> None:
        self._stats = stats
        self._enable_prefix_caching = enable_prefix_caching

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if stats is None:
            return
        for name, (attribute, meaning) in _GAUGES.items():
            yield GaugeMetricFamily(f"tinyllm:{name}", meaning, getattr(stats, attribute))
        for name, (attribute, meaning) in _COUNTERS.items():
            off = name.startswith("prefix_cache") and not self._enable_prefix_caching
            count = 0 if off else getattr(stats, attribute)
            yield CounterMetricFamily(f"tinyllm:{name}", meaning, count)
        used = stats.pages_used / max(1, stats.pages_total)
        meaning = "Part of the KV cache that requests use; 1 is all of it."
        yield GaugeMetricFamily("tinyllm:kv_cache_usage_perc", meaning, used)


def labelled_metrics(own: bytes, replicas: Mapping[str, bytes]) -> bytes:
    """Merge the metrics of HTTP from this process's page, and all others from the replicas' pages.

    `replicas` maps the name of each replica to its page. Metrics from a replica's page get the name
    as the label `replica`.
    """
    families: dict[str, Metric] = {}
    pages: list[tuple[str | None, bytes]] = [(None, own), *replicas.items()]
    for replica, page in pages:
        for family in text_string_to_metric_families(page.decode()):
            if family.name.startswith(HTTP_PREFIX) != (replica is None):
                continue
            name, kind = family.name, family.type
            merged = families.setdefault(name, Metric(name, family.documentation, kind))
            label = {} if replica is None else {"replica": replica}
            for sample in family.samples:
                merged.add_sample(sample.name, {**sample.labels, **label}, sample.value)
    return generate_latest(_Families(families))


class _Families(Collector):
    """A collector of given metrics."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()
