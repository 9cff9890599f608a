"""After a step that failed: its requests run apart, by halves, until the one that makes steps fail is alone."""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice

from engine.request import Request
from engine.step_plan import SchedulerOutput

Group = dict[str, int]  # request id -> tokens that it had computed, had the step that failed not failed


class DeviceOutOfMemory(Exception):
    """A step needs more of the device's memory than there is."""


class EngineBroken(Exception):
    """The model fails whatever it runs, or the engine's state is in doubt: only a new process helps."""


class Quarantine:
    """Groups of suspects, run one after the other with nothing else in the step.

    A suspect is cleared once it computes as many tokens as in the step that failed. A group in which a step fails again
    is split; a suspect that fails alone is the culprit. So one culprit among n requests costs about log2(n) + 1 steps.
    """

    def __init__(self) -> None:
        self._groups: deque[Group] = deque()

    @property
    def current(self) -> Mapping[str, int] | None:
        """The group whose requests alone may run now, by request id; None when nobody is under suspicion."""
        return self._groups[0] if self._groups else None

    def accuse(self, plan: SchedulerOutput) -> Request | None:
        """Suspect the requests of a step that failed. Returns the culprit once it is found; it is no suspect then."""
        failed = {
            share.request.request_id: share.num_computed_tokens + share.num_known_tokens for share in plan.scheduled
        }
        group = self._groups.popleft() if self._groups else {}
        if len(failed) == 1 and failed.keys() == group.keys():
            return plan.scheduled[0].request
        failed = {request_id: max(tokens, group.get(request_id, 0)) for request_id, tokens in failed.items()}
        untried = {request_id: tokens for request_id, tokens in group.items() if request_id not in failed}
        self._groups.extendleft(reversed([part for part in (*_halves(failed), untried) if part]))
        return None

    def review(self, unfinished: Mapping[str, Request]) -> bool:
        """Clear suspects that got past the point of failure or ended. Returns whether another group's turn came, or
        nobody is left."""
        num_groups = len(self._groups)
        while self._groups and self._is_clear(self._groups[0], unfinished):
            self._groups.popleft()
        return len(self._groups) < num_groups

    @staticmethod
    def _is_clear(group: Group, unfinished: Mapping[str, Request]) -> bool:
        for request_id in [request_id for request_id in group if request_id not in unfinished]:
            del group[request_id]
        return all(unfinished[request_id].num_computed_tokens >= tokens for request_id, tokens in group.items())


def _halves(group: Group) -> Iterator[Group]:
    items = iter(group.items())
    yield dict(islice(items, -(-len(group) // 2)))
    yield dict(items)
