"""Figures as text: Prometheus's own format, or OpenMetrics for whoever accepts that."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Collect = Callable[[], Iterable[Metric]]


class _Collector(Collector):
    def __init__(self, collect: Collect) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def registry_of(*collects: Collect) -> CollectorRegistry:
    """Return a registry that asks these functions whenever it is read."""
    registry = CollectorRegistry(auto_describe=False)
    for collect in collects:
        registry.register(_Collector(collect))
    return registry


def expose(registry: CollectorRegistry, accept: str | None) -> tuple[bytes, str]:
    """Return the text and its content type, in the format that the request's header `Accept` asks for."""
    try:
        encode, content_type = choose_encoder(accept or "")
    except (TypeError, ValueError):  # a version that is none
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


def gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    """Return a gauge without labels."""
    return GaugeMetricFamily(name, documentation, value=value)


def counter(name: str, documentation: str, value: float) -> CounterMetricFamily:
    """Return a counter without labels; its name is told with `_total`."""
    return CounterMetricFamily(name, documentation, value=value)
