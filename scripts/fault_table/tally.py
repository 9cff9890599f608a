"""What became of the jobs that a queue accepted, counted in SQL; what the queue still holds, counted in Redis."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import redis
from sqlalchemy import Engine, func, select

from worker.records import TERMINAL_STATES, AttemptState, JobState
from worker.sql.attempt_ends import FENCED
from worker.sql.database import reading
from worker.sql.lookups import chunked
from worker.sql.tables import AttemptRow, JobRow, ResultRow


class Attempt(NamedTuple):
    """What is counted of an attempt."""

    id: int
    state: AttemptState
    error_code: str | None


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of jobs; `stale` and `reruns` are of attempts."""

    accepted: int = 0  # the queue said so to the producer
    done: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0
    lost: int = 0  # accepted, and without an end
    doubled: int = 0  # more than one attempt done, or results other than one of the attempt that is done
    stale: int = 0  # writes that the fence rejected
    reruns: int = 0  # attempts beyond a job's first

    def __add__(self, other: Self) -> "Tally":
        return Tally(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)})

    @property
    def breaches(self) -> tuple[str, ...]:
        """What of the invariant does not hold: accepted = done + failed + dead + cancelled, a result row per job."""
        ended = self.done + self.failed + self.dead + self.cancelled
        found = []
        if self.accepted != ended or self.lost:
            found.append(f"{self.accepted} accepted, {ended} ended, {self.lost} lost")
        if self.doubled:
            found.append(f"{self.doubled} doubled")
        return tuple(found)


def count_jobs(database: Engine, accepted: Sequence[str]) -> Tally:
    """Count what SQL says of the accepted jobs."""
    states: dict[str, JobState] = {}
    attempts: dict[str, list[Attempt]] = {}
    results: dict[str, list[int]] = {}
    with reading(database) as connection:
        for chunk in chunked(accepted):
            found = connection.execute(select(JobRow.id, JobRow.state).where(JobRow.id.in_(chunk)))
            states.update((row.id, row.state) for row in found)
            columns = (AttemptRow.job_id, AttemptRow.id, AttemptRow.state, AttemptRow.error_code)
            for row in connection.execute(select(*columns).where(AttemptRow.job_id.in_(chunk))):
                attempts.setdefault(row.job_id, []).append(Attempt(row.id, row.state, row.error_code))
            kept = select(ResultRow.job_id, ResultRow.attempt_id).where(ResultRow.job_id.in_(chunk))
            for result in connection.execute(kept):
                results.setdefault(result.job_id, []).append(result.attempt_id)
    by_state = Counter(states.values())
    return Tally(
        accepted=len(accepted),
        done=by_state[JobState.DONE],
        failed=by_state[JobState.FAILED],
        dead=by_state[JobState.DEAD],
        cancelled=by_state[JobState.CANCELLED],
        lost=sum(states.get(job_id) not in TERMINAL_STATES for job_id in accepted),
        doubled=sum(_is_doubled(attempts.get(id_, []), states.get(id_), results.get(id_, [])) for id_ in accepted),
        stale=sum(attempt.error_code == FENCED for known in attempts.values() for attempt in known),
        reruns=sum(len(known) - 1 for known in attempts.values()),
    )


def _is_doubled(attempts: Sequence[Attempt], state: JobState | None, results: Sequence[int]) -> bool:
    done = [attempt.id for attempt in attempts if attempt.state is AttemptState.DONE]
    if state is JobState.CANCELLED:  # its partial output, if there was any, is kept
        return len(done) > 0 or len(results) > 1
    return len(done) > 1 or list(results) != done


def count_jobs_in_sql(database: Engine) -> int:
    """Return how many jobs SQL knows at all."""
    with reading(database) as connection:
        return connection.scalar(select(func.count()).select_from(JobRow)) or 0


def count_left(connection: redis.Redis, queues: Sequence[str] = ("default",)) -> int:
    """Return how many jobs a queue still holds, waiting or leased."""
    left = 0
    for queue in queues:
        for key in (f"rq:queue:{queue}", f"pagemill:leases:{queue}", f"rq:wip:{queue}"):
            kind = connection.type(key)
            size = connection.llen(key) if kind == b"list" else connection.zcard(key)
            assert isinstance(size, int)
            left += size
    return left
