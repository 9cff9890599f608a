"""How the jobs of a batch ended, read from SQL in the order of their lines; memory is that of one page."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, Select, func, select

from worker.batch.line_set import LineSet
from worker.batch.records import job_id_of, line_of
from worker.records import TERMINAL_STATES, Choice, JobState
from worker.sql.database import reading
from worker.sql.lookups import find_choices
from worker.sql.tables import AttemptRow, JobRow, JobStatsRow, ResultRow, WorkerRow

PAGE_IDS = 10_000
RESULTS_AT_ONCE = 100  # outputs may be long

LAST_LINE = 999_999_999
UNHAPPY_STATES = TERMINAL_STATES - {JobState.DONE}


@dataclass(frozen=True, slots=True)
class EndedJob:
    """How one job ended. What belongs to an output is None where there is none."""

    job_id: str
    custom_id: str
    state: JobState
    error_code: str | None
    error_message: str | None
    ended_at: datetime
    model: str | None  # as the request named it, else the worker's name of its own
    text: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    logprobs: list[dict[str, Any]] | None
    prompt_logprobs: list[dict[str, Any]] | None
    token_ids: list[int] | None
    prompt_token_ids: list[int] | None  # of a job that asked for token ids
    payload: str  # the job's JSON object
    choices: tuple[Choice, ...] = ()  # the outputs beside the first


class BatchResults:
    """Jobs of batches made of files. Every method raises ServiceUnavailable when the database cannot be reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def lines(self, batch_id: str) -> LineSet:
        """Return the lines that are jobs already."""
        lines = LineSet()
        after = 0
        while page := self._page(batch_id, select(JobRow.id), after + 1, LAST_LINE, PAGE_IDS):
            for line in page:
                lines.add(line)
            after = page[-1]
        return lines

    def ended_lines(self, batch_id: str, first: int, last: int) -> list[int]:
        """Return the lines from `first` to `last` whose jobs have ended."""
        ended = select(JobRow.id).where(JobRow.state.in_(TERMINAL_STATES))
        return self._page(batch_id, ended, first, last, last - first + 1)

    def unhappy_lines(self, batch_id: str, after: int) -> list[int]:
        """Return the next lines behind `after` whose jobs ended without being done."""
        unhappy = select(JobRow.id).where(JobRow.state.in_(UNHAPPY_STATES))
        return self._page(batch_id, unhappy, after + 1, LAST_LINE, PAGE_IDS)

    def read(self, batch_id: str, lines: Sequence[int]) -> list[EndedJob]:
        """Return how the jobs of a few lines ended; one that was queued again since is left out."""
        with reading(self._engine) as connection:
            job_ids = [job_id_of(batch_id, line) for line in lines]
            rows = connection.execute(_ended(job_ids)).all()
            choices = find_choices(connection, job_ids)
        return [replace(EndedJob(*row), choices=choices.get(row.id, ())) for row in rows]

    def read_all(self, batch_id: str, states: Iterable[JobState]) -> Iterator[EndedJob]:
        """Yield how the jobs of the batch ended that are in `states`, all terminal, in the order of their lines."""
        after = 0
        chosen = select(JobRow.id).where(JobRow.state.in_(states))
        while page := self._page(batch_id, chosen, after + 1, LAST_LINE, RESULTS_AT_ONCE):
            yield from self.read(batch_id, page)
            after = page[-1]

    def _page(self, batch_id: str, statement: Select[str], first: int, last: int, limit: int) -> list[int]:
        # By the range of the ids alone: with the batch's id beside it, SQLite would walk through the whole batch.
        bounds = JobRow.id.between(job_id_of(batch_id, first), job_id_of(batch_id, last))
        with reading(self._engine) as connection:
            ids = connection.scalars(statement.where(bounds).order_by(JobRow.id).limit(limit)).all()
        return [line_of(job_id) for job_id in ids if job_id.startswith(f"{batch_id}-")]


def _ended(job_ids: Sequence[str]) -> Select[*tuple[Any, ...]]:
    return (
        select(
            JobRow.id,
            JobRow.custom_id,
            JobRow.state,
            JobRow.error_code,
            JobRow.error_message,
            JobRow.ended_at,
            func.coalesce(JobRow.model, WorkerRow.model),
            ResultRow.text,
            ResultRow.finish_reason,
            ResultRow.prompt_tokens,
            ResultRow.completion_tokens,
            JobStatsRow.prefix_hit_tokens,
            ResultRow.logprobs,
            ResultRow.prompt_logprobs,
            ResultRow.token_ids,
            ResultRow.prompt_token_ids,
            JobRow.payload,
        )
        .outerjoin(ResultRow, ResultRow.job_id == JobRow.id)
        .outerjoin(JobStatsRow, JobStatsRow.job_id == JobRow.id)
        .outerjoin(AttemptRow, AttemptRow.id == ResultRow.attempt_id)
        .outerjoin(WorkerRow, WorkerRow.name == AttemptRow.worker_name)
        .where(JobRow.id.in_(job_ids), JobRow.state.in_(TERMINAL_STATES))
        .order_by(JobRow.id)
    )
