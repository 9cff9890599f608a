"""What a run submits, by the kind of its action. Each function may be called again after any interruption."""

import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import redis
from sqlalchemy import Engine, func, select

from worker.batch.lines import RequestRules
from worker.batch.records import BatchFile
from worker.batch.running import Plan, check_batch
from worker.batch.store import BatchStore
from worker.batch.submitting import Submitter, rules_of
from worker.cron.actions import Action, BatchAction, JsonlAction, PromptAction, RagAction
from worker.cron.records import Run, Schedule
from worker.cron.run_jobs import RunJobs, Tick, jobs_of_file, jobs_of_prompt, unchanged_digest
from worker.cron.run_recorder import RunRecorder
from worker.errors import PagemillError
from worker.queue.submission import enqueue
from worker.rag.indexing import Change
from worker.rag.runs import reindex, summarize_collection
from worker.rag.summarizing import RunOptions
from worker.settings_model import Settings
from worker.sql.database import reading
from worker.sql.tables import JobRow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a run came to; `message` is for people, where there is something to tell."""

    num_jobs: int
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """One run that is submitted, and with what. `tick` hears how many lines of a file were checked."""

    settings: Settings
    database: Engine
    connection: redis.Redis
    recorder: RunRecorder
    tick: Tick
    run: Run
    schedule: Schedule

    def submit(self, action: Action) -> Submitted:
        """Submit everything. Raises PagemillError where the action cannot be carried out, ServiceUnavailable or
        TryLater where a service is down, and what the recorder raises."""
        match action:
            case PromptAction():
                with jobs_of_prompt(self.run, self.schedule, action) as found:
                    return self._enqueue(found)
            case JsonlAction():
                with jobs_of_file(self.run, self.schedule, action, self.tick) as found:
                    return self._enqueue(found)
            case BatchAction():
                return self._submit_batch(action)
            case RagAction():
                return self._summarize(action)

    def _enqueue(self, found: RunJobs) -> Submitted:
        self.recorder.settle(found.num_jobs, found.source_digest)
        chunks = enqueue(
            self.connection,
            found.jobs,
            queue=self.schedule.queue,
            result_ttl_seconds=self.settings.result_ttl_seconds,
            recorder=self.recorder,
        )
        for ids in chunks:
            self.recorder.queued(len(ids))
        return Submitted(found.num_jobs)

    def _submit_batch(self, action: BatchAction) -> Submitted:
        """Submit a file of requests; a line at fault harms no other."""
        store = BatchStore(self.database)
        digest = unchanged_digest(self.run, action.path)
        rules = RequestRules(max_tokens=action.max_tokens, model=action.model)
        window = None if action.deadline_seconds is None else timedelta(seconds=action.deadline_seconds)
        plan = Plan(Path(action.path).name, None, self.schedule.tenant, self.schedule.queue, rules, window)
        batch = self._opened_batch(store, plan)
        if batch.in_progress_at is None:
            submitter = Submitter(
                self.connection, self.recorder, store, logger.warning, self.settings.result_ttl_seconds
            )
            with Path(action.path).open("rb") as file:
                checked = check_batch(store, file, batch, plan, self.tick)
                self.recorder.settle(len(checked.good), digest)
                for lines in submitter.submit(file, batch, rules_of(batch, rules), checked):
                    self.recorder.queued(len(lines))
            store.submitted(batch.batch_id)
        status = store.status(batch.batch_id)
        assert status is not None, "it was just written"
        num_faults, num_requests = status.batch.num_faults, status.batch.num_requests or 0
        told = f"{num_faults} of {num_requests} lines are at fault; `pagemill batch results {batch.batch_id}` has them"
        return Submitted(num_requests - num_faults, told if num_faults else None)

    def _opened_batch(self, store: BatchStore, plan: Plan) -> BatchFile:
        """Return the run's batch, of an earlier try or new. Raises PagemillError for one that cannot be run."""
        assert self.run.batch_id is not None, "a run that fires has a batch"
        found = store.status(self.run.batch_id)
        if found is None:
            return store.create(replace(plan.new_batch(None), batch_id=self.run.batch_id))
        if found.batch.failure is not None:
            raise PagemillError(found.batch.failure)
        return found.batch

    def _summarize(self, action: RagAction) -> Submitted:
        """Submit the summaries that a collection lacks, after its source was read again if that is asked for."""
        settings = self.settings
        if action.model is not None:
            settings = settings.model_copy(update={"model": action.model})
        num_unreadable = 0
        if action.index:
            found = reindex(settings, self.database, action.collection)
            num_unreadable = sum(document.change is Change.UNREADABLE for document in found)
        options = RunOptions(
            queue=self.schedule.queue,
            tenant=self.schedule.tenant,
            batch_id=self.run.batch_id,
            result_ttl_seconds=settings.result_ttl_seconds,
        )
        planned = summarize_collection(
            settings, self.database, self.connection, self.recorder, action.collection, action.prompt, options
        )
        with reading(self.database) as connection:
            of_run = select(func.count()).select_from(JobRow).where(JobRow.batch_id == self.run.batch_id)
            num_jobs = connection.scalar(of_run) or 0
        told = [f"{len(planned.to_run)} documents to summarise, {planned.num_unchanged} unchanged"]
        if num_unreadable:
            told.append(f"{num_unreadable} could not be read: `pagemill rag ls {action.collection}` tells why")
        return Submitted(num_jobs, ", ".join(told))
