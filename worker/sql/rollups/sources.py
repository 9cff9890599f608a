"""Where counts come from: the rows of jobs themselves, and the roll-ups that were made of them.

A `Source` gives the same columns from either: what the caller groups by, its own keys, its measures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    Label,
    Select,
    SQLColumnExpression,
    and_,
    cast,
    column,
    func,
    literal,
    select,
    union_all,
)

from worker.records import JobState
from worker.sql.rollups.expressions import bucket_of, list_of
from worker.sql.rollups.measures import (
    COST_KEYS,
    FAILURE_KEYS,
    IS_WASTE,
    LATENCIES,
    MEMORY,
    OF_COSTS,
    OF_FAILURES,
    OF_JOBS,
    OF_WASTE,
    WASTE_KEYS,
    LatestAttempt,
    Measure,
)
from worker.sql.tables import (
    AttemptRow,
    Base,
    HistogramRow,
    HourlyBatchCostsRow,
    HourlyBatchFailuresRow,
    HourlyBatchFigureRow,
    HourlyBatchTotalsRow,
    HourlyBatchWasteRow,
    HourlyCostsRow,
    HourlyFailuresRow,
    HourlyFigureRow,
    HourlyTotalsRow,
    HourlyWasteRow,
    JobRow,
    JobStatsRow,
    ResultRow,
    WorkerRow,
)

Groups = Sequence[Label[Any]]
Conditions = Sequence[ColumnElement[bool]]


@dataclass(frozen=True)
class Source:
    """One kind of count. `rows` is a FROM clause over `JobRow` and what belongs to a job."""

    table: type[Base]  # the roll-up; its columns carry the names of keys and measures
    rows: Callable[[], FromClause]
    keys: Mapping[str, SQLColumnExpression[Any]]
    measures: Mapping[str, Measure]
    only: Conditions = ()
    batch_table: type[Base] | None = None  # the roll-up that has batches too

    def by_batch(self) -> "Source | None":
        """Return the same with the roll-up that has batches; None where there is none."""
        return None if self.batch_table is None else replace(self, table=self.batch_table)

    def from_rows(self, groups: Groups, conditions: Conditions) -> Select[Any]:
        """Count the jobs that the conditions take; `groups` are labelled expressions over `JobRow`."""
        keys: list[Label[Any]] = [key.label(name) for name, key in self.keys.items()]
        measures = [of.merge(of.expression).label(name) for name, of in self.measures.items()]
        counted = select(*groups, *keys, *measures).select_from(self.rows()).where(*self.only, *conditions)
        return _grouped(counted, [*groups, *keys])

    def from_rollup(self, groups: Groups, conditions: Conditions) -> Select[Any]:
        """Add up what was counted; `groups` are labelled expressions over `table`."""
        columns = self.table.__table__.c
        keys = [columns[name].label(name) for name in self.keys]
        measures = [of.merge(columns[name]).label(name) for name, of in self.measures.items()]
        return _grouped(select(*groups, *keys, *measures).where(*conditions), [*groups, *keys])

    def merged(self, parts: Sequence[Select[Any]]) -> Select[Any]:
        """Add up parts that were counted with groups of the same names."""
        everything = union_all(*parts).subquery()
        groups = [column for column in everything.c if column.key not in self.measures]
        measures = [of.merge(everything.c[name]).label(name) for name, of in self.measures.items()]
        return _grouped(select(*groups, *measures), groups)


def _grouped(statement: Select[Any], groups: Sequence[ColumnElement[Any]]) -> Select[Any]:
    return statement.group_by(*groups) if groups else statement


def _jobs() -> FromClause:
    return (
        JobRow.__table__.outerjoin(ResultRow, ResultRow.job_id == JobRow.id)
        .outerjoin(JobStatsRow, JobStatsRow.job_id == JobRow.id)
        .outerjoin(LatestAttempt, and_(LatestAttempt.job_id == JobRow.id, LatestAttempt.epoch == JobRow.epoch))
    )


def _attempts() -> FromClause:
    return JobRow.__table__.join(AttemptRow, AttemptRow.job_id == JobRow.id).outerjoin(
        WorkerRow, WorkerRow.name == AttemptRow.worker_name
    )


TOTALS = Source(HourlyTotalsRow, _jobs, {}, OF_JOBS, batch_table=HourlyBatchTotalsRow)
FAILURES = Source(
    HourlyFailuresRow,
    lambda: JobRow.__table__,
    FAILURE_KEYS,
    OF_FAILURES,
    (JobRow.state.in_([JobState.FAILED, JobState.DEAD]),),
    HourlyBatchFailuresRow,
)
WASTE = Source(HourlyWasteRow, _attempts, WASTE_KEYS, OF_WASTE, (IS_WASTE,), HourlyBatchWasteRow)
COSTS = Source(HourlyCostsRow, _attempts, COST_KEYS, OF_COSTS, batch_table=HourlyBatchCostsRow)


@dataclass(frozen=True)
class FigureSource(Source):
    """Counts of latency and memory figures: a job has a row for each figure that it has."""

    metrics: Sequence[str] = ()

    def from_rows(self, groups: Groups, conditions: Conditions) -> Select[Any]:
        """Count as `Source` does, over the figures of the jobs."""
        figures = self.values(groups, conditions)
        grouped = [figures.c[group.name].label(group.name) for group in groups]
        keys: list[Label[Any]] = [key.label(name) for name, key in self.keys.items()]
        measures = [of.merge(of.expression).label(name) for name, of in self.measures.items()]
        return _grouped(select(*grouped, *keys, *measures).select_from(figures), [*grouped, *keys])

    def from_rollup(self, groups: Groups, conditions: Conditions) -> Select[Any]:
        """Add up as `Source` does, the metrics of this one alone."""
        return super().from_rollup(groups, [*conditions, self.table.__table__.c.metric.in_(self.metrics)])

    def values(self, groups: Groups, conditions: Conditions) -> FromClause:
        """Return the figures one by one: the groups, `metric`, `value`. Latencies are those of jobs that are done."""
        wanted = [JobStatsRow.__table__.c[metric] for metric in self.metrics]
        facts = (
            select(*groups, JobRow.state.label("job_state"), *wanted)
            .select_from(JobRow.__table__.join(JobStatsRow, JobStatsRow.job_id == JobRow.id))
            .where(*conditions)
            .cte()
        )
        named = [facts.c[group.name] for group in groups]
        return union_all(
            *(
                select(*named, literal(metric).label("metric"), cast(facts.c[metric], Double).label("value")).where(
                    facts.c[metric].is_not(None),
                    *([facts.c.job_state == JobState.DONE] if metric in LATENCIES else []),
                )
                for metric in self.metrics
            )
        ).subquery("figures")


_METRIC: ColumnElement[Any] = column("metric")
_VALUE: ColumnElement[Any] = column("value", Double)
_ONE_BY_ONE = Measure(literal(1), lambda count: cast(func.sum(count), BigInteger))


_BUCKETS = {"metric": _METRIC, "bucket": bucket_of(_VALUE)}
_FIGURES = {
    "jobs": _ONE_BY_ONE,
    "total": Measure(_VALUE, func.sum),
    "largest": Measure(_VALUE, func.max),
}


def figures_of(metrics: Sequence[str]) -> FigureSource:
    """Return count, sum and maximum of the metrics."""
    return FigureSource(HourlyFigureRow, _jobs, {"metric": _METRIC}, _FIGURES, metrics=metrics)


def histograms_of(metrics: Sequence[str]) -> FigureSource:
    """Return the histograms of the metrics."""
    return FigureSource(HistogramRow, _jobs, _BUCKETS, {"jobs": _ONE_BY_ONE}, metrics=metrics)


@dataclass(frozen=True)
class BatchFigureSource(FigureSource):
    """Count, sum, maximum and histogram of figures, by batch. A histogram is in one row: two lists side by side."""

    def from_rows(self, groups: Groups, conditions: Conditions) -> Select[Any]:
        """Count as `Source` does."""
        counted = super().from_rows(groups, conditions).subquery()
        named = [counted.c[name] for name in (*(group.name for group in groups), "metric")]
        measures = [of.merge(counted.c[name]).label(name) for name, of in self.measures.items()]
        buckets = [list_of(counted.c.bucket).label("buckets"), list_of(counted.c.jobs).label("bucket_jobs")]
        return select(*named, *measures, *buckets).group_by(*named)

    def from_rollup(self, groups: Groups, conditions: Conditions) -> Select[Any]:
        """Return what was counted, hour by hour."""
        columns = self.table.__table__.c
        named = [columns[name] for name in ("metric", *self.measures, "buckets", "bucket_jobs")]
        return select(*groups, *named).where(*conditions, columns.metric.in_(self.metrics))

    def merged(self, parts: Sequence[Select[Any]]) -> Select[Any]:
        """Return the rows of all parts, those of one group and metric behind each other: SQL adds up no lists."""
        rows = union_all(*parts).subquery()
        figures = {*self.measures, "buckets", "bucket_jobs"}
        return select(*rows.c).order_by(*(column for column in rows.c if column.key not in figures))


def batch_figures_of(metrics: Sequence[str]) -> BatchFigureSource:
    """Return the figures and histograms of the metrics by batch."""
    table = HourlyBatchFigureRow
    return BatchFigureSource(table, _jobs, _BUCKETS, _FIGURES, batch_table=table, metrics=metrics)


FIGURES = figures_of((*LATENCIES, *MEMORY))
HISTOGRAMS = histograms_of((*LATENCIES, *MEMORY))
BATCH_FIGURES = batch_figures_of((*LATENCIES, *MEMORY))
