"""What a schedule and its runs are: frozen, plain, no I/O. Times are UTC.

A **slot** is one instant at which a schedule is to fire; a **run** is what came of a slot, or of a person's wish.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class MissedPolicy(StrEnum):
    """What becomes of a slot at which no scheduler ran, or only too late."""

    ONCE = "once"  # the latest of them fires, late; the others are recorded as skipped
    SKIP = "skip"  # all are recorded as skipped


class OverlapPolicy(StrEnum):
    """What becomes of a slot while jobs of an earlier run have not ended."""

    SKIP = "skip"  # it is recorded as skipped
    ALLOW = "allow"  # it fires


class RunKind(StrEnum):
    """Why there is a run."""

    SLOT = "slot"
    MANUAL = "manual"  # somebody asked for it; its slot is the time of asking


class RunState(StrEnum):
    """How far a run is. The last three are its ends."""

    FIRING = "firing"  # its jobs are being submitted
    SUBMITTED = "submitted"  # all of them are
    SKIPPED = "skipped"
    FAILED = "failed"  # its action cannot be carried out


class SkipReason(StrEnum):
    """Why slots were skipped."""

    MISSED = "missed"  # no scheduler ran, or the one on time stands for them
    OVERLAP = "overlap"  # jobs of an earlier run had not ended
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule as SQL has it."""

    id: str
    name: str
    expression: str
    time_zone: str  # IANA's name
    action: str  # JSON; see worker.cron.actions
    queue: str
    tenant: str
    missed: MissedPolicy
    overlap: OverlapPolicy
    grace_seconds: float  # a slot is missed when nobody fired it for so long
    starts_at: datetime | None  # no slot before
    ends_at: datetime | None  # no slot after
    created_at: datetime
    paused_at: datetime | None
    removed_at: datetime | None
    next_slot_at: datetime | None  # the first that nobody has dealt with; None when there are no more

    @property
    def grace(self) -> timedelta:
        return timedelta(seconds=self.grace_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as SQL has it. One that is skipped may stand for several slots, from `slot_at` to `last_slot_at`."""

    id: str
    schedule_id: str
    kind: RunKind
    slot_at: datetime
    last_slot_at: datetime
    num_slots: int
    state: RunState
    skip_reason: SkipReason | None
    message: str | None  # why it failed or was skipped, or what its last try met
    batch_id: str | None  # of its jobs
    source_digest: str | None  # of the file that it submits; one that changed in between fails the run
    num_jobs: int | None  # None until that is known
    num_submitted: int
    epoch: int  # rises with each scheduler that works on it: the fence of its writes
    num_failures: int  # tries that ended in order, because a service was down or the scheduler was told to stop
    retry_at: datetime | None  # it waits out a back-off until then
    claimed_by: str | None  # the scheduler that works on it
    claimed_until: datetime | None  # others may, afterwards
    opened_at: datetime
    ended_at: datetime | None


def log_fields(schedule: Schedule, run: Run) -> dict[str, object]:
    """Return the `extra` of a log call that is about a run."""
    fields: dict[str, object] = {"tenant": schedule.tenant, "queue": schedule.queue}
    return fields if run.batch_id is None else {**fields, "batch_id": run.batch_id}
