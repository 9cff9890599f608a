"""Summaries of a whole collection: only of documents that have none of their present text by this prompt and model.

What is to be made is in SQL before its jobs are submitted, and a job's id follows from what it is made for: whatever
was interrupted is submitted again by the next run, and nothing twice. Ends are taken over by any worker, by `collect`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

import redis
from sqlalchemy import Connection, Engine

from worker.errors import ConfigurationError, PagemillError
from worker.jobs import DEFAULT_TENANT
from worker.queue.submission import DEFAULT_QUEUE, DEFAULT_RESULT_TTL_SECONDS, NewJob, Recorder, enqueue, valid_payload
from worker.rag.collecting import collect_summaries
from worker.rag.model import RagModel
from worker.rag.planning import Plan, PlannedJob, plan_summary, planned_jobs
from worker.rag.prompts import SummaryPrompt
from worker.sql import collections, summaries
from worker.sql.collections import Collection, existing_collection
from worker.sql.database import reading, writing
from worker.sql.store import JobStore
from worker.sql.summaries import DocumentToSummarise, NewSummary, Version
from worker.sql.tables import SummaryState, utc_now

DOCUMENTS_AT_ONCE = 50  # in memory, and in a transaction
MAX_CUSTOM_ID_CHARACTERS = 256
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Where a run's jobs go."""

    queue: str = DEFAULT_QUEUE
    tenant: str = DEFAULT_TENANT
    batch_id: str | None = None  # None: one is made up
    context_tokens: int | None = None  # of prompt and output together; None: all that the model and the workers have
    result_ttl_seconds: int = DEFAULT_RESULT_TTL_SECONDS


@dataclass(frozen=True, slots=True)
class PlannedDocument:
    """A document that is to be summarised, and how."""

    document: DocumentToSummarise
    plan: Plan

    @property
    def num_tokens(self) -> int:
        return sum(self.document.chunk_tokens)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run would do. Documents are in the order in which they share the most."""

    collection: Collection
    version: Version
    batch_id: str
    new: tuple[PlannedDocument, ...]  # never summarised so: new ones, changed ones, another prompt or model
    failed: tuple[PlannedDocument, ...]  # they run once more
    pending: tuple[PlannedDocument, ...]  # under way; what of them was not submitted is
    num_unchanged: int

    @property
    def to_run(self) -> tuple[PlannedDocument, ...]:
        return (*self.new, *self.failed)

    @property
    def num_jobs(self) -> int:
        return sum(planned.plan.num_jobs for planned in self.to_run)


@dataclass(frozen=True, slots=True)
class Progress:
    """How many of the summaries of a version are where."""

    done: int
    failed: int
    pending: int


class Summarizer:
    """Summarises collections. Errors of every method: PagemillError for what cannot be; ServiceUnavailable and TryLater
    as the database and the queue have them."""

    def __init__(
        self,
        database: Engine,
        connection: redis.Redis,
        recorder: Recorder,
        model: RagModel,
        *,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._connection = connection
        self._recorder = recorder
        self._model = model
        self._clock = clock

    def plan(self, name: str, prompt: SummaryPrompt, options: RunOptions) -> RunPlan:
        """Return what a run would do now, after taking over what has ended."""
        collect_summaries(JobStore(self._database), self._connection)
        version = Version(prompt.hash, self._model.fingerprint)
        with reading(self._database) as connection:
            collection = required_collection(connection, name, self._model)
            documents = summaries.find_to_summarise(connection, collection.id, version)
        planned: dict[SummaryState | None, list[PlannedDocument]] = {state: [] for state in (None, *SummaryState)}
        # By title: documents of one series share the beginning of it, besides the instructions.
        for document in sorted(documents, key=lambda document: (document.title, document.source)):
            if document.state is not SummaryState.DONE:
                planned[document.state].append(PlannedDocument(document, self._plan_of(document, prompt, options)))
        return RunPlan(
            collection=collection,
            version=version,
            batch_id=options.batch_id or f"rag.{name[:80]}.{self._clock():%Y%m%dT%H%M%S}.{uuid4().hex[:8]}",
            new=tuple(planned[None]),
            failed=tuple(planned[SummaryState.FAILED]),
            pending=tuple(planned[SummaryState.PENDING]),
            num_unchanged=sum(document.state is SummaryState.DONE for document in documents),
        )

    def submit(self, run: RunPlan, prompt: SummaryPrompt, options: RunOptions) -> Iterator[int]:
        """Submit what a plan says, yielding the number of documents that are submitted so far."""
        num_submitted = 0
        for start in range(0, len(run.to_run), DOCUMENTS_AT_ONCE):
            page = run.to_run[start : start + DOCUMENTS_AT_ONCE]
            jobs = self._jobs_of(run, page, prompt, next_attempt=1)
            rows = [_new_summary(run, prompt, self._model, planned, jobs, self._clock()) for planned in page]
            with writing(self._database) as connection:
                # In the order of their keys: two runs at once must not wait for each other.
                summaries.add_summaries(connection, sorted(rows, key=lambda row: row.columns["document_id"]))
            self._enqueue(run, page, jobs, options)
            num_submitted += len(page)
            yield num_submitted
        for start in range(0, len(run.pending), DOCUMENTS_AT_ONCE):
            page = run.pending[start : start + DOCUMENTS_AT_ONCE]
            self._resume(run, page, self._jobs_of(run, page, prompt, next_attempt=0), options)

    def wait(self, run: RunPlan) -> Iterator[Progress]:
        """Yield the progress until no summary of the run's version is pending."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            ended = collect_summaries(JobStore(self._database), self._connection)
            with reading(self._database) as connection:
                states = summaries.count_states(connection, run.collection.id, run.version)
            done, failed, pending = (
                states.get(state, 0) for state in (SummaryState.DONE, SummaryState.FAILED, SummaryState.PENDING)
            )
            progress = Progress(done, failed, pending)
            yield progress
            if not progress.pending:
                return
            pause = FIRST_PAUSE_SECONDS if ended else min(pause * 1.5, LONGEST_PAUSE_SECONDS)
            time.sleep(pause)

    def _plan_of(self, document: DocumentToSummarise, prompt: SummaryPrompt, options: RunOptions) -> Plan:
        context = self._model.context(options.context_tokens)
        frame = prompt.frame_tokens(document.title, lambda text: self._model.counter.count([text])[0])
        try:
            return plan_summary(document.chunk_tokens, context - prompt.max_tokens - frame, prompt.max_tokens)
        except ConfigurationError as error:
            limit = f"{self._model.limited_by} has {self._model.max_model_len} tokens"
            raise ConfigurationError(f"{error}; {document.source}; {limit}") from None

    def _jobs_of(
        self, run: RunPlan, page: Sequence[PlannedDocument], prompt: SummaryPrompt, *, next_attempt: int
    ) -> dict[int, list[PlannedJob]]:
        """Return the jobs of documents by their ids; those of the attempt at hand, or of the next one."""
        texts: dict[int, list[str]] = {planned.document.document_id: [] for planned in page}
        with reading(self._database) as connection:
            for chunk in collections.find_chunks(connection, list(texts)):
                texts[chunk.document_id].append(chunk.text[chunk.overlap_characters :])
        jobs = {}
        for planned in page:
            document = planned.document
            own = texts[document.document_id]
            if len(own) != len(document.chunk_tokens):
                raise PagemillError(f"{document.source} was indexed anew at the same time; run the command again")
            seed = _seed(run.collection, document, run.version, document.attempt_count + next_attempt)
            jobs[document.document_id] = planned_jobs(planned.plan, prompt, document.title, own, seed)
        return jobs

    def _enqueue(
        self,
        run: RunPlan,
        page: Sequence[PlannedDocument],
        jobs: Mapping[int, list[PlannedJob]],
        options: RunOptions,
    ) -> None:
        new = (
            _new_job(run, planned, job, self._model, options)
            for planned in page
            for job in jobs[planned.document.document_id]
        )
        for _ in enqueue(
            self._connection,
            new,
            queue=options.queue,
            result_ttl_seconds=options.result_ttl_seconds,
            recorder=self._recorder,
        ):
            pass

    def _resume(
        self,
        run: RunPlan,
        page: Sequence[PlannedDocument],
        jobs: Mapping[int, list[PlannedJob]],
        options: RunOptions,
    ) -> None:
        """Submit those jobs of pending summaries that SQL has not got: their submission was interrupted."""
        with reading(self._database) as connection:
            known = summaries.known_jobs(connection, {job.job_id for of in jobs.values() for job in of})
        missing = {document_id: [job for job in of if job.job_id not in known] for document_id, of in jobs.items()}
        self._enqueue(run, page, missing, options)


def required_collection(connection: Connection, name: str, model: RagModel) -> Collection:
    """Return the collection of that name. Raises PagemillError where there is none, or its documents were split for
    another tokenizer than the model's."""
    collection = existing_collection(connection, name)
    if collection.tokenizer_hash != model.tokenizer_hash:
        raise PagemillError(
            f"collection {name} was split by the tokens of {collection.model}, not of {model.name}; index it again "
            "with this model (pagemill rag index)"
        )
    return collection


def _seed(collection: Collection, document: DocumentToSummarise, version: Version, attempt: int) -> str:
    made_from = (document.content_hash, version.prompt_hash, version.model_hash)
    return " ".join((collection.key, str(document.document_id), *made_from, str(attempt)))


def _new_summary(
    run: RunPlan,
    prompt: SummaryPrompt,
    model: RagModel,
    planned: PlannedDocument,
    jobs: Mapping[int, list[PlannedJob]],
    now: datetime,
) -> NewSummary:
    document = planned.document
    own = jobs[document.document_id]
    columns = {
        "document_id": document.document_id,
        "content_hash": document.content_hash,
        "prompt_hash": run.version.prompt_hash,
        "model_hash": run.version.model_hash,
        "prompt": prompt.version,
        "model": model.name,
        "state": SummaryState.PENDING,
        "attempt_count": document.attempt_count + 1,
        "batch_id": run.batch_id,
        "job_id": own[-1].job_id,
        "num_jobs": len(own),
        "text": None,
        "completion_tokens": None,
        "finish_reason": None,
        "error_message": None,
        "created_at": now,
        "ended_at": None,
    }
    return NewSummary(columns, tuple((job.job_id, job.level, job.position) for job in own))


def _new_job(run: RunPlan, planned: PlannedDocument, job: PlannedJob, model: RagModel, options: RunOptions) -> NewJob:
    document = planned.document
    is_final = job.level == len(planned.plan.levels) - 1
    suffix = "" if is_final else f"#{job.level}.{job.position}"
    payload = {
        **job.payload,
        "model": model.name,
        "tenant": options.tenant,
        "batch_id": document.batch_id if document.state is SummaryState.PENDING else run.batch_id,
        "batch_size": run.num_jobs or None,
        "custom_id": f"{document.source[: MAX_CUSTOM_ID_CHARACTERS - len(suffix)]}{suffix}",
        "metadata": {"rag_collection": run.collection.name, "rag_step": "summary" if is_final else "part"},
    }
    return NewJob(job.job_id, valid_payload({name: value for name, value in payload.items() if value is not None}))
