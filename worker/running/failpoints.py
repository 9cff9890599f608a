"""Failpoints: named places where a worker fails on purpose, so that tests meet real crashes at exact moments.

    PAGEMILL_FAILPOINTS="after_claim=kill@3,before_commit=sleep:0.5,in_step(bad)=raise@1-2"

A worker takes them from the setting `failpoints`, which no production worker has. Without it, a failpoint is one
look-up in an empty mapping.
"""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeVar

from worker.errors import ServiceUnavailable

Name = TypeVar("Name", bound=StrEnum)

EXIT_CODE = 70  # of the action `exit`: sysexits.h's internal software error
_FAULT = re.compile(
    r"(?P<point>[a-z_]+)(\((?P<marker>[\w-]+)\))?=(?P<action>[a-z]+)(:(?P<argument>[\w.-]+))?"
    r"(@(?P<first>\d+)(?P<range>-(?P<last>\d*))?)?",
    re.ASCII,
)

logger = logging.getLogger(__name__)


class Point(StrEnum):
    """Where a worker can fail, in the order in which a job gets there."""

    AFTER_CLAIM = "after_claim"  # Redis has the lease; nobody else knows
    BEFORE_BEGIN = "before_begin"  # about to write the attempts to SQL
    BEFORE_STEP = "before_step"
    IN_STEP = "in_step"  # within the model, requests and all; takes a marker. The probe after a failure reaches it too
    AFTER_STEP = "after_step"
    BEFORE_COMMIT = "before_commit"  # generated; SQL does not know
    AFTER_COMMIT = "after_commit"  # SQL knows; Redis does not
    AFTER_ACKNOWLEDGE = "after_acknowledge"
    OUTBOX_RECORDED = "outbox_recorded"  # of a relay: `jobs` has what the outbox had; Redis has it not
    OUTBOX_QUEUED = "outbox_queued"  # Redis has it too; it is still in the outbox
    # Where a scheduler can fail.
    SLOT_DUE = "slot_due"  # SQL does not know of its run
    RUN_OPENED = "run_opened"  # SQL has the run; none of its jobs is anywhere
    RUN_RECORDED = "run_recorded"  # SQL has some jobs that Redis has not
    RUN_QUEUED = "run_queued"  # Redis has them too; SQL does not know
    RUN_ENDED = "run_ended"


class Action(StrEnum):
    """What happens there."""

    KILL = "kill"  # SIGKILL to the own process
    EXIT = "exit"  # at once, with EXIT_CODE
    RAISE = "raise"  # FailpointReached, an error that nobody expects
    UNAVAILABLE = "unavailable"  # ServiceUnavailable, as if the service were down
    SLEEP = "sleep"  # sleep:SECONDS
    WAIT = "wait"  # wait:FILE, until there is such a file in the working directory
    HANG = "hang"  # for ever
    OOM = "oom"  # DeviceOutOfMemory, as for a step that is too large; in_step only
    NAN = "nan"  # NaN in the KV cache of the marked requests; in_step only


MODEL_ACTIONS = frozenset({Action.OOM, Action.NAN})
POLL_SECONDS = 0.01
_NOTHING = re.compile("")
_ARGUMENTS = {  # of actions that take one: its form, and what it is
    Action.SLEEP: (re.compile(r"\d+(\.\d+)?", re.ASCII), "seconds, as in sleep:0.5"),
    Action.WAIT: (re.compile(r"[\w.-]+", re.ASCII), "a file's name, as in wait:ready"),
}


class FailpointReached(Exception):
    """What the action `raise` raises."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One action at one point, from the `first` to the `last` time (counted from 1) that the point is reached."""

    point: Point
    action: Action
    seconds: float = 0.0  # to sleep
    marker: str | None = None  # counts only the steps with a prompt that contains it
    first: int = 1
    last: int | None = None  # None is for ever
    file: str | None = None  # to wait for

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `point[(marker)]=action[:argument][@first[-[last]]]`. Raises ValueError saying what is wrong."""
        match = _FAULT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text.strip()!r} is not of the form point[(marker)]=action[:argument][@first[-[last]]]")
        point, action = _known(Point, match["point"]), _known(Action, match["action"])
        seconds, file = _read_argument(action, match["argument"])
        if point is not Point.IN_STEP and (match["marker"] or action in MODEL_ACTIONS):
            raise ValueError(f"a marker, {Action.OOM} and {Action.NAN} need the point {Point.IN_STEP}")
        if action is Action.NAN and match["marker"] is None:
            raise ValueError(f"{Action.NAN} needs a marker, as in in_step(bad)=nan")
        first = int(match["first"] or 1)
        if match["range"] is None:
            last = None if match["first"] is None else first
        else:
            last = int(match["last"]) if match["last"] else None
        if first < 1 or (last is not None and last < first):
            raise ValueError(f"{text.strip()!r}: times count from 1, and the last is not before the first")
        return cls(point, action, seconds, match["marker"], first, last, file)


def _known(kind: type[Name], name: str) -> Name:
    try:
        return kind(name)
    except ValueError:
        raise ValueError(f"{name!r} is none of {', '.join(kind)}") from None


def _read_argument(action: Action, argument: str | None) -> tuple[float, str | None]:
    """Return how long to sleep, and which file to wait for."""
    form, what = _ARGUMENTS.get(action, (_NOTHING, "no argument"))
    if not form.fullmatch(argument or ""):
        raise ValueError(f"{action} takes {what}")
    return float(argument or 0.0) if action is Action.SLEEP else 0.0, argument if action is Action.WAIT else None


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Read faults separated by commas. Raises ValueError."""
    return tuple(Fault.parse(part) for part in text.split(",") if part.strip())


class Failpoints:
    """The faults of one worker, and how often each was met. Each point is reached by one thread only."""

    def __init__(
        self, faults: Iterable[Fault] = (), model_actions: Mapping[Action, Callable[[], None]] | None = None
    ) -> None:
        """`model_actions` are those that only somebody who knows the model can do."""
        self._faults: dict[Point, list[Fault]] = {}
        for fault in faults:
            self._faults.setdefault(fault.point, []).append(fault)
        self._times: dict[Fault, int] = {}
        self._model_actions = model_actions or {}

    def markers(self, point: Point) -> frozenset[str]:
        """Return what prompts must be searched for at a point."""
        return frozenset(fault.marker for fault in self._faults.get(point, ()) if fault.marker is not None)

    def reach(self, point: Point, markers: frozenset[str] = frozenset()) -> None:
        """Do what is to happen at a point; `markers` are those found in the prompts of the step."""
        for fault in self._faults.get(point, ()):
            if fault.marker is None or fault.marker in markers:
                self._meet(fault)

    def _meet(self, fault: Fault) -> None:
        times = self._times[fault] = self._times.get(fault, 0) + 1
        if times < fault.first or (fault.last is not None and times > fault.last):
            return
        level = logging.DEBUG if fault.action in _ARGUMENTS else logging.WARNING
        logger.log(level, "failpoint %s, reached %d times: %s", fault.point, times, fault.action)
        if fault.action in self._model_actions:
            self._model_actions[fault.action]()
        else:
            _act(fault)


def _act(fault: Fault) -> None:
    match fault.action:
        case Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Action.EXIT:
            os._exit(EXIT_CODE)
        case Action.RAISE:
            raise FailpointReached(f"failpoint {fault.point}")
        case Action.UNAVAILABLE:
            raise ServiceUnavailable(f"failpoint {fault.point}")
        case Action.SLEEP:
            time.sleep(fault.seconds)
        case Action.WAIT:
            while not Path(fault.file or "").is_file():
                time.sleep(POLL_SECONDS)
        case Action.HANG:
            threading.Event().wait()
        case _:
            raise AssertionError(f"nobody does {fault.action} here")
