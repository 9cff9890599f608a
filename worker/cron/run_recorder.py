"""Between a run's jobs and SQL: each part of them is written with how far the run is, by whoever still has the run."""

from collections.abc import Callable, Sequence
from datetime import datetime

from worker.cron.records import Run
from worker.cron.run_store import RunStore
from worker.jobs import parse_job
from worker.queue.submission import QueueRecord
from worker.running.failpoints import Failpoints, Point
from worker.sql.job_changes import SubmittedJob


class Stopped(Exception):
    """The scheduler is to end."""


class RunRecorder:
    """Writes a run's jobs to SQL. Whoever submits them counts those that Redis has, in `num_submitted`."""

    def __init__(
        self,
        runs: RunStore,
        run: Run,
        clock: Callable[[], datetime],
        failpoints: Failpoints,
        stopped: Callable[[], bool],
    ) -> None:
        self._runs = runs
        self._run = run
        self._clock = clock
        self._failpoints = failpoints
        self._stopped = stopped
        self.num_submitted = run.num_submitted

    def settle(self, num_jobs: int, source_digest: str | None) -> None:
        """Write how many jobs there are, and of which file. Raises Fenced."""
        self._runs.settle(self._run, num_jobs, source_digest)

    def record(self, queue: str, records: Sequence[QueueRecord]) -> None:
        """See `worker.queue.submission.Recorder`. Raises Fenced and Stopped as well."""
        if self._stopped():
            raise Stopped
        jobs = [
            SubmittedJob(record.job_id, queue, parse_job(record.payload), record.payload_json, record.enqueued_at)
            for record in records
        ]
        self._runs.record(self._run, jobs, self.num_submitted, self._clock())
        self._failpoints.reach(Point.RUN_RECORDED)

    def queued(self, number: int) -> None:
        """Say that Redis has so many more. SQL hears of them with the next part."""
        self.num_submitted += number
        self._failpoints.reach(Point.RUN_QUEUED)
