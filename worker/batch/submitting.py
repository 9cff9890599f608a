"""From the good lines of a file to the jobs of its batch, in SQL and in the queue. May be done again after any end."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import IO, Any

import redis

from worker.batch.lines import CheckedFile, RequestLine, RequestReader, RequestRules
from worker.batch.patience import NO_PATIENCE, Patience
from worker.batch.records import BatchFile, LineFault, job_id_of
from worker.batch.store import BatchStore
from worker.cancelling import cancel_batch
from worker.errors import PagemillError, TryLater
from worker.jobs import MAX_BATCH_SIZE
from worker.queue.submission import CHUNK_JOBS, NewJob, Recorder, enqueue
from worker.records import TERMINAL_STATES, JobState
from worker.sql.store import JobStore

PAUSE_SECONDS = 2.0  # until a full Redis is tried again
GONE_ON = TERMINAL_STATES | {JobState.RUNNING}


def rules_of(batch: BatchFile, rules: RequestRules) -> RequestRules:
    """Return the rules with what the batch adds to each of its jobs, its size at the most that it may be."""
    extra: dict[str, Any] = {"tenant": batch.tenant, "batch_id": batch.batch_id, "batch_size": MAX_BATCH_SIZE - 1}
    if batch.expires_at is not None:
        extra["deadline"] = batch.expires_at.isoformat()
    return replace(rules, extra=extra)


class Submitter:
    """Submits batches' jobs: recorded in SQL, then queued."""

    def __init__(
        self,
        connection: redis.Redis,
        recorder: Recorder,
        store: BatchStore,
        notice: Callable[[str], None],
        result_ttl_seconds: int,
        patience: Patience = NO_PATIENCE,
    ) -> None:
        """`notice` tells the user that Redis is full; `patience` is for services that are away."""
        self._connection = connection
        self._recorder = recorder
        self._store = store
        self._jobs = JobStore(store.engine)
        self._notice = notice
        self._result_ttl_seconds = result_ttl_seconds
        self._patience = patience

    def submit(
        self, file: IO[bytes], batch: BatchFile, rules: RequestRules, checked: CheckedFile
    ) -> Iterator[Sequence[int]]:
        """Submit the good lines, yielding those that are jobs now, chunk by chunk. What an earlier try submitted, and
        has gone on since, is left alone.

        Raises PagemillError when the file is not any more what was checked, or the batch was cancelled meanwhile.
        """
        reader = RequestReader(replace(rules, endpoint=checked.endpoint, served=None))
        size = {"batch_size": len(checked.good)}
        good = (line for line in reader.read(file) if line.line in checked.good)
        while chunk := list(islice(good, CHUNK_JOBS)):
            jobs = [_new_job(batch.batch_id, line, size) for line in chunk]
            self._patience.call(partial(self._enqueue, batch, jobs))
            yield [line.line for line in chunk]

    def _enqueue(self, batch: BatchFile, jobs: Sequence[NewJob]) -> None:
        if self._store.is_cancelling(batch.batch_id):
            for _ in cancel_batch(self._jobs, self._connection, batch.batch_id):
                pass
            raise PagemillError(f"batch {batch.batch_id} was cancelled while it was being submitted")
        states = self._jobs.states(job.job_id for job in jobs)
        waiting = [job for job in jobs if states.get(job.job_id) not in GONE_ON]
        while True:
            chunks = enqueue(
                self._connection,
                waiting,
                queue=batch.queue,
                result_ttl_seconds=self._result_ttl_seconds,
                recorder=self._recorder,
            )
            try:
                for _ in chunks:
                    pass
                break
            except TryLater as error:
                self._notice(f"{error}; submission goes on when there is room")
            time.sleep(PAUSE_SECONDS)


def _new_job(batch_id: str, line: RequestLine | LineFault, size: Mapping[str, int]) -> NewJob:
    if isinstance(line, LineFault):
        raise PagemillError(f"line {line.line}: the file was changed while it was being submitted")
    return NewJob(job_id_of(batch_id, line.line), {**line.payload, **size})
