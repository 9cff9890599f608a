"""Crashes and whom they incriminate: what a job's record in Redis tells, and the diagnosis of a guilty job in SQL.

The rules are in `worker/queue/lua/suspecting.lua`: a crash's suspects run apart in smaller and smaller groups, and a
job that was alone in its third crash is guilty.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self

POISON = "poison"  # the error code of a job that was found guilty
GUILTY_CRASHES = b"3"  # a job's count of crashes, the last of them alone


class CrashKind(StrEnum):
    """How a worker's end became known."""

    DEATH = "death"  # its process is gone, and left its crash journal
    REBOOT = "reboot"  # the same, and its machine has started anew since
    SILENCE = "silence"  # its leases ran out; nobody knows more


@dataclass(frozen=True, slots=True)
class Crash:
    """One crash that a job was a suspect of."""

    worker: str
    kind: CrashKind
    at: datetime  # UTC, Redis's clock, when it was noticed
    signal: int | None  # that ended the process, where its supervisor saw it
    num_suspects: int  # this job among them
    output_tokens: int | None = None  # that the job had by then, where it is known


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What it takes to reproduce the end of a guilty job."""

    payload: Mapping[str, Any]
    seed: int  # that every attempt samples with
    crashes: tuple[Crash, ...]
    workers: tuple[Mapping[str, Any], ...] = ()  # those that crashed, and what they ran on

    @property
    def worker_names(self) -> frozenset[str]:
        return frozenset(crash.worker for crash in self.crashes)

    def on(self, workers: Iterable[Mapping[str, Any]]) -> Self:
        """Return the diagnosis with what its workers ran on."""
        return replace(self, workers=tuple(workers))

    def to_json(self) -> str:
        """Return the diagnosis as the column `jobs.diagnosis` holds it."""
        return json.dumps({"kind": POISON, **asdict(self)}, default=datetime.isoformat, ensure_ascii=False)

    def summary(self) -> str:
        """Return the job's error message."""
        return summary(self.crashes)


def summary(crashes: Sequence[Crash]) -> str:
    """Return the error message of a guilty job."""
    ends = "; ".join(_describe(crash) for crash in crashes)
    return f"it was being computed in {len(crashes)} crashes of workers, alone in the last: {ends}"


def read_crashes(log: bytes) -> tuple[Crash, ...]:
    """Read the log in a job's record, leaving out what is no entry of it."""
    return tuple(crash for line in log.splitlines() if (crash := _read_crash(line)) is not None)


def _read_crash(line: bytes) -> Crash | None:
    try:
        entry = json.loads(line)
        signal, output_tokens = entry.get("signal"), entry.get("output_tokens")
        return Crash(
            worker=str(entry["worker"]),
            kind=CrashKind(entry["kind"]),
            at=datetime.fromtimestamp(float(entry["at"]), UTC),
            signal=None if signal is None else int(signal),
            num_suspects=int(entry["num_suspects"]),
            output_tokens=None if output_tokens is None else int(output_tokens),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError, RecursionError):
        return None


def _describe(crash: Crash) -> str:
    how = crash.kind.value if crash.signal is None else f"signal {crash.signal}"
    company = "alone" if crash.num_suspects == 1 else f"one of {crash.num_suspects} suspects"
    return f"{how} at {crash.at:%Y-%m-%d %H:%M:%S} UTC, {company}"
