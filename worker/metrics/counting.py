"""Counters and histograms that are cheap to fill: many values under one lock, told to Prometheus only when it asks.

The client library's own would take a lock for each value, and add a series of their making to each.
"""

import threading
from bisect import bisect_left
from collections import Counter as Multiset
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

MAX_LABEL_VALUES = 64  # of one counter; what comes after them counts as OTHER
OTHER = "other"


class Histogram:
    """Values counted by bucket. From any thread."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        """`bounds` are the buckets' upper limits, rising; one without limit comes after them."""
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def add(self, values: Iterable[float]) -> None:
        """Count values."""
        with self._lock:
            for value in values:
                self._counts[bisect_left(self._bounds, value)] += 1
                self._sum += value

    def family(self) -> HistogramMetricFamily:
        """Return the histogram as Prometheus has it: each bucket counts those below it too."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets, seen = [], 0
        for bound, count in zip((*map(float, self._bounds), "+Inf"), counts, strict=True):
            seen += count
            buckets.append((str(bound), seen))
        family = HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], buckets, total)
        return family


class Counter:
    """Events counted. From any thread."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name = name
        self._documentation = documentation
        self._count = 0
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        """Count events."""
        with self._lock:
            self._count += number

    def family(self) -> CounterMetricFamily:
        """Return the counter as Prometheus has it, by which its name ends in `_total`."""
        return CounterMetricFamily(self._name, self._documentation, value=self._count)


class LabelledCounter:
    """Events counted by the value of one label, of which there are at most `MAX_LABEL_VALUES`. From any thread."""

    def __init__(self, name: str, documentation: str, label: str, known: Iterable[str] = ()) -> None:
        """`known` values are there from the start, at zero, so that a rate sees their first event."""
        self._name = name
        self._documentation = documentation
        self._label = label
        self._counts = Multiset(dict.fromkeys(known, 0))
        self._lock = threading.Lock()

    def add(self, values: Iterable[str]) -> None:
        """Count one event for each value."""
        with self._lock:
            for value in values:
                is_room = value in self._counts or len(self._counts) < MAX_LABEL_VALUES
                self._counts[value if is_room else OTHER] += 1

    def family(self) -> CounterMetricFamily:
        """Return the counter as Prometheus has it."""
        family = CounterMetricFamily(self._name, self._documentation, labels=[self._label])
        with self._lock:
            counts = sorted(self._counts.items())
        for value, count in counts:
            family.add_metric([value], count)
        return family
