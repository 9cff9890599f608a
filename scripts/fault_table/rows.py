"""A row of the fault table: what it is, what its function works with, what came out."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from scripts.fault_table.postgresql import NoServer
from scripts.fault_table.tally import Tally, count_left
from scripts.fault_table.world import RowFailed, World, Worlds
from worker.records import AttemptState

SHORT_LEASES: dict[str, Any] = {"lease_seconds": 4, "beat_seconds": 0.5, "sweep_seconds": 0.5}
STEP_SLEEP = "before_step=sleep:0.01"  # a step takes long enough to be hit


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of each fault a run gives itself."""

    is_quick: bool
    num_seeds: int  # of row 1

    def pick(self, quick: float, full: float) -> float:
        return quick if self.is_quick else full


@dataclass
class Trial:
    """One run of one row."""

    worlds: Worlds
    servers: tuple[Path, ...]
    scale: Scale
    report: Callable[[str], None]  # progress
    tally: Tally = field(default_factory=Tally)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def world(self, *, server: int = -1, **options: Any) -> Iterator[World]:
        """Open a world (see `Worlds.open`) on one of the machine's servers; count its jobs when the block ends."""
        with self.worlds.open(self.servers[server % len(self.servers)], **options) as world:
            try:
                yield world
            finally:
                self.tally += world.tally()
            left = count_left(world.connection)
            self.check(not left, f"the queue still holds {left} entries")

    @property
    def has_postgresql(self) -> bool:
        """Whether there is a PostgreSQL server, for rows that can do without one."""
        return self.worlds.has_postgresql

    def check(self, holds: object, problem: str) -> None:
        """Note a problem unless something holds."""
        if not holds:
            self.problems.append(problem)

    def note(self, text: str) -> None:
        self.notes.append(text)


RowFunction = Callable[[Trial], None]


@dataclass(frozen=True, slots=True)
class Row:
    """A fault, and the outcome that is right."""

    number: int
    fault: str
    outcome: str
    run: RowFunction
    is_timed: bool = False  # its outcome has a limit of seconds: nothing runs beside it


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a row's run came to. `missing` names a service that is not there: nothing was tried."""

    number: int
    fault: str
    outcome: str  # the right one
    tally: Tally
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float
    missing: str | None = None

    @property
    def is_right(self) -> bool:
        return not self.problems and self.missing is None


def prompts(count: int, *, max_tokens: int = 40, random: Random | None = None) -> list[dict[str, Any]]:
    """Return jobs that all run to their `max_tokens`; with a random source, these differ."""
    return [
        {
            "prompt": f"Question {number}: what is it?",
            "max_tokens": random.randint(8, max_tokens) if random else max_tokens,
            "ignore_eos": True,
        }
        for number in range(count)
    ]


def free_port() -> int:
    """Return a TCP port of this machine that nobody listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port: int = taken.getsockname()[1]
    return port


def attempts_of(world: World, job_id: str) -> list[AttemptState]:
    """Return the states of a job's attempts, in their order."""
    detail = world.store.job(job_id)
    return [] if detail is None else [attempt.state for attempt in detail.attempts]


def run_row(row: Row, trial: Trial) -> RowResult:
    """Run a row; whatever goes wrong is one of its problems."""
    started = time.monotonic()
    missing = None
    try:
        row.run(trial)
    except NoServer as error:
        missing = str(error)
    except RowFailed as error:
        trial.problems.append(str(error))
        trial.report(error.details)
    except Exception as error:  # a fault that the harness did not expect is a finding, not the end of the table
        trial.problems.append(f"{type(error).__name__}: {error}")
    if missing is None:
        trial.problems += trial.tally.breaches
    return RowResult(
        row.number,
        row.fault,
        row.outcome,
        trial.tally,
        tuple(trial.problems),
        tuple(trial.notes),
        time.monotonic() - started,
        missing,
    )
