"""Many items at once, without one bad item harming the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from worker.errors import PagemillError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Fault(Generic[T]):
    """An item that failed on its own, and how."""

    item: T
    error: Exception


def isolating(act: Callable[[Sequence[T]], R], items: Sequence[T]) -> tuple[list[R], list[Fault[T]]]:
    """Act on all items at once or, where that raises something unexpected, on each alone.

    Returns the results of the calls that succeeded, and the items whose own call failed. `act` must leave nothing
    half-done when it raises, or be able to do it again. PagemillErrors pass: they are about a service, not an item.
    """
    if not items:
        return [], []
    try:
        return [act(items)], []
    except PagemillError:
        raise
    except Exception as error:
        if len(items) == 1:
            return [], [Fault(items[0], error)]
    results: list[R] = []
    faults: list[Fault[T]] = []
    for item in items:
        done, failed = isolating(act, [item])
        results += done
        faults += failed
    return results, faults
