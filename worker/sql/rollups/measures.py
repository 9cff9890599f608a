"""What is counted of jobs and attempts. Each name is a column of a table of `worker.sql.tables.rollups`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Double, SQLColumnExpression, and_, case, cast, func, literal, or_
from sqlalchemy.orm import aliased

from worker.records import AttemptState, JobState
from worker.sql.attempt_ends import FENCED
from worker.sql.rollups.expressions import SECONDS_PER_HOUR
from worker.sql.tables import AttemptRow, JobRow, JobStatsRow, ResultRow, WorkerRow

LATENCIES = ("queue_ms", "tokenize_ms", "ttft_ms", "itl_mean_ms", "itl_p99_ms", "e2e_ms")
MEMORY = ("kv_blocks_peak", "kv_bytes_peak", "kv_block_seconds", "memory_peak_bytes")
RECOMPUTED = "recomputed"  # the reason of waste within the attempt that ended its job
UNKNOWN = "unknown"  # the code of a failure that has none

LatestAttempt = aliased(AttemptRow, name="latest")

Aggregate = Callable[[SQLColumnExpression[Any]], ColumnElement[Any]]


@dataclass(frozen=True, slots=True)
class Measure:
    """Something counted: of one row by `expression`, of many rows, and of counts that were taken before, by `merge`."""

    expression: SQLColumnExpression[Any]
    merge: Aggregate


def _whole(expression: SQLColumnExpression[Any]) -> Measure:
    return Measure(expression, lambda column: cast(func.coalesce(func.sum(column), 0), BigInteger))


def _real(expression: SQLColumnExpression[Any]) -> Measure:
    return Measure(expression, lambda column: func.coalesce(func.sum(cast(column, Double)), 0.0))


def _known(expression: SQLColumnExpression[Any]) -> Measure:
    """Return a sum that is NULL where nothing is known."""
    return Measure(expression, lambda column: func.sum(cast(column, Double)))


def _count(condition: ColumnElement[bool]) -> Measure:
    return _whole(case((condition, 1), else_=0))


_HAS_RESULT = ResultRow.job_id.is_not(None)
_HAS_PREFIX_FIGURES = and_(_HAS_RESULT, JobStatsRow.job_id.is_not(None))

OF_JOBS: Mapping[str, Measure] = {
    "jobs_done": _count(JobRow.state == JobState.DONE),
    "jobs_failed": _count(JobRow.state == JobState.FAILED),
    "jobs_cancelled": _count(JobRow.state == JobState.CANCELLED),
    "jobs_dead": _count(JobRow.state == JobState.DEAD),
    "jobs_with_retries": _count(JobRow.attempt_count > 1),
    "attempts": _whole(JobRow.attempt_count),
    "prompt_tokens": _whole(ResultRow.prompt_tokens),
    "completion_tokens": _whole(ResultRow.completion_tokens),
    "preemptions": _whole(JobStatsRow.preemptions),
    "jobs_with_prefix_figures": _count(_HAS_PREFIX_FIGURES),
    "jobs_with_hit": _count(and_(_HAS_PREFIX_FIGURES, JobStatsRow.prefix_hit_tokens > 0)),
    "prefix_prompt_tokens": _whole(case((_HAS_PREFIX_FIGURES, ResultRow.prompt_tokens))),
    "prefix_hit_tokens": _whole(case((_HAS_PREFIX_FIGURES, JobStatsRow.prefix_hit_tokens))),
    "kv_block_seconds": _real(JobStatsRow.kv_block_seconds),
    "kv_block_seconds_limit": _known(JobStatsRow.kv_block_seconds_limit),
    "kv_block_seconds_share": _known(case((JobStatsRow.job_id.is_not(None), LatestAttempt.kv_block_seconds_share))),
    "saved_against_limit_block_seconds": _known(JobStatsRow.kv_block_seconds_limit - JobStatsRow.kv_block_seconds),
    "saved_by_sharing_block_seconds": _known(JobStatsRow.kv_block_seconds - LatestAttempt.kv_block_seconds_share),
    "first_claim_at": Measure(JobRow.started_at, func.min),
    "last_end_at": Measure(case((JobRow.started_at.is_not(None), JobRow.ended_at)), func.max),
}


FAILURE_KEYS: Mapping[str, SQLColumnExpression[Any]] = {
    "state": cast(JobRow.state, JobRow.error_code.type),
    "error_code": func.coalesce(JobRow.error_code, UNKNOWN),
}
OF_FAILURES: Mapping[str, Measure] = {
    "jobs": _whole(literal(1)),
    "first_at": Measure(JobRow.ended_at, func.min),
    "last_at": Measure(JobRow.ended_at, func.max),
    "example_message": Measure(JobRow.error_message, func.min),
}

# The attempt that ended its job wasted what it computed twice; any other one wasted all of it.
_IS_LATEST = AttemptRow.epoch == JobRow.epoch
WASTE_KEYS: Mapping[str, SQLColumnExpression[Any]] = {
    "reason": case(
        (AttemptRow.error_code == FENCED, "fenced"),
        (AttemptRow.state == AttemptState.LOST, "lost"),
        (AttemptRow.state == AttemptState.REQUEUED, "handed_back"),
        (and_(AttemptRow.state == AttemptState.FAILED, ~_IS_LATEST), "retried"),
        else_=RECOMPUTED,
    )
}
_IS_PART = WASTE_KEYS["reason"] == RECOMPUTED
OF_WASTE: Mapping[str, Measure] = {
    "attempts": _whole(literal(1)),
    "wasted_tokens": _whole(case((_IS_PART, AttemptRow.recomputed_tokens), else_=AttemptRow.computed_tokens)),
    "wasted_engine_seconds": _real(case((_IS_PART, AttemptRow.wasted_engine_seconds), else_=AttemptRow.engine_seconds)),
}
IS_WASTE = and_(
    AttemptRow.state != AttemptState.RUNNING,
    or_(
        ~_IS_PART,
        AttemptRow.recomputed_tokens > 0,
        AttemptRow.wasted_engine_seconds > 0,
    ),
)

COST_KEYS: Mapping[str, SQLColumnExpression[Any]] = {"currency": WorkerRow.price_currency}
OF_COSTS: Mapping[str, Measure] = {
    "jobs": _count(_IS_LATEST),
    "attempts": _whole(literal(1)),
    "engine_seconds": _real(AttemptRow.engine_seconds),
    "wasted_engine_seconds": _real(AttemptRow.wasted_engine_seconds),
    "kv_block_seconds_share": _real(AttemptRow.kv_block_seconds_share),
    "cost": _known(AttemptRow.engine_seconds * WorkerRow.price_per_engine_hour / SECONDS_PER_HOUR),
}
