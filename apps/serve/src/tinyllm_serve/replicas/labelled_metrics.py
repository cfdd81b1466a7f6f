"""Metrics of several processes on one page for Prometheus."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tinyllm_serve.metrics import HTTP_PREFIX


def labelled_metrics(own: bytes, replicas: Mapping[str, bytes]) -> bytes:
    """Merge pages of metrics.

    Args:
        own: the page of the listening process, of which the metrics of HTTP are taken.
        replicas: the pages of replicas, by name. All other metrics are taken from these pages, with
            the name as the label `replica`.
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
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families(Collector):
    """A collector of given metrics."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()
