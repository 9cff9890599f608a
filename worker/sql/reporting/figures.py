"""Counts, means and percentiles of latency and memory figures.

Exact where few jobs are asked for and all of their rows are there; else from histograms, with a known error.
Percentiles are by nearest rank: the smallest value that at least p percent of the values do not exceed.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, case, func, select

from worker.sql.reporting.filters import Grouping, ReportFilter, group_labels, group_values
from worker.sql.reporting.parts import (
    Parts,
    asks_for_batches,
    divide,
    divide_histograms,
    is_purged,
    job_conditions,
    only_rows,
    span_conditions,
    statement,
)
from worker.sql.reporting.rows import Group
from worker.sql.rollups.expressions import RELATIVE_ERROR, value_in
from worker.sql.rollups.sources import BATCH_FIGURES, batch_figures_of, figures_of, histograms_of
from worker.sql.tables import JobRow

PERCENTS = (50, 90, 99)
EXACT_JOBS = 100_000  # more are not sorted


@dataclass(frozen=True, slots=True)
class Distribution:
    """One metric of one group."""

    group: Group
    metric: str
    count: int
    mean: float
    total: float
    largest: float
    percentiles: Mapping[int, float]
    relative_error: float


Histogram = tuple[Sequence[int], Sequence[int]]  # some buckets, and beside each how many jobs are in it


@dataclass(frozen=True, slots=True)
class Counted:
    """One metric over some jobs: from this, unlike from percentiles, that of more jobs can be added up."""

    jobs: int
    total: float
    largest: float
    histograms: Sequence[Histogram]  # of parts of the jobs

    @classmethod
    def sum_of(cls, parts: Sequence["Counted"]) -> "Counted":
        """Add up what was counted of jobs that have none in common."""
        return cls(
            sum(part.jobs for part in parts),
            sum(part.total for part in parts),
            max(part.largest for part in parts),
            tuple(chain.from_iterable(part.histograms for part in parts)),
        )

    def distribution(self, group: Group, metric: str) -> Distribution:
        """Return what it tells; percentiles have the histograms' error."""
        lowest = min(min(buckets) for buckets, _ in self.histograms)
        counts = [0] * (1 + max(max(buckets) for buckets, _ in self.histograms) - lowest)
        for buckets, jobs in self.histograms:
            for bucket, number in zip(buckets, jobs, strict=True):
                counts[bucket - lowest] += number
        ranks = list(accumulate(counts))
        buckets_of = {p: lowest + bisect_left(ranks, ranks[-1] * p / 100) for p in PERCENTS}
        # What stands for the highest bucket may exceed the highest value.
        percentiles = {p: min(value_in(bucket), self.largest) for p, bucket in buckets_of.items()}
        mean = self.total / self.jobs
        return Distribution(group, metric, self.jobs, mean, self.total, self.largest, percentiles, RELATIVE_ERROR)


def count(
    connection: Connection, metrics: Sequence[str], chosen: ReportFilter, by: Grouping
) -> dict[tuple[Group, str], Counted]:
    """Return each metric of each group with its histogram: for few groups, as all buckets of each are fetched."""
    found: defaultdict[tuple[Group, str], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    parts = divide_histograms(connection, chosen, by)
    for row in connection.execute(statement(histograms_of(metrics), parts, chosen, by)).mappings():
        buckets, jobs = found[group_values(by, row), row["metric"]]
        buckets.append(row["bucket"])
        jobs.append(row["jobs"])
    sums = _sums(connection, metrics, chosen, by)
    return {
        key: Counted(sums[key]["jobs"], sums[key]["total"], sums[key]["largest"], [histogram])
        for key, histogram in found.items()
    }


def are_exact(connection: Connection, chosen: ReportFilter, by: Grouping, exact_jobs: int) -> bool:
    """Tell whether `distributions` gives exact percentiles: the rows of all jobs are there, and they are not many."""
    return not is_purged(connection, _divide(connection, chosen, by)) and _are_few(connection, chosen, exact_jobs)


def distributions(
    connection: Connection, metrics: Sequence[str], chosen: ReportFilter, by: Grouping, exact_jobs: int = EXACT_JOBS
) -> list[Distribution]:
    """Return what is known of each metric of each group, exactly up to `exact_jobs` jobs."""
    if are_exact(connection, chosen, by, exact_jobs):
        return _exact(connection, metrics, chosen, by)
    parts = _divide(connection, chosen, by)
    if asks_for_batches(chosen, by) and parts.rolled:
        figures = connection.execute(statement(batch_figures_of(metrics), parts, chosen, by))
        return _of_batches(figures.mappings(), by)
    return _from_histograms(connection, metrics, chosen, by, parts)


def _divide(connection: Connection, chosen: ReportFilter, by: Grouping) -> Parts:
    if asks_for_batches(chosen, by):
        return divide(connection, BATCH_FIGURES, chosen, by)
    return divide_histograms(connection, chosen, by)


def _sums(
    connection: Connection, metrics: Sequence[str], chosen: ReportFilter, by: Grouping
) -> dict[tuple[Group, str], RowMapping]:
    sums = figures_of(metrics)
    totals = statement(sums, divide(connection, sums, chosen, by), chosen, by)
    return {(group_values(by, row), row["metric"]): row for row in connection.execute(totals).mappings()}


def _are_few(connection: Connection, chosen: ReportFilter, exact_jobs: int) -> bool:
    asked = [*span_conditions((chosen.since, chosen.until)), *job_conditions(chosen)]
    some = select(JobRow.id).where(*asked).limit(exact_jobs + 1).subquery()
    return (connection.scalar(select(func.count()).select_from(some)) or 0) <= exact_jobs


def _exact(connection: Connection, metrics: Sequence[str], chosen: ReportFilter, by: Grouping) -> list[Distribution]:
    (span,) = only_rows(chosen).rows
    groups = group_labels(by, JobRow.__table__.c, JobRow.ended_at)
    figures = figures_of(metrics).values(groups, [*span_conditions(span), *job_conditions(chosen)])
    keys = [figures.c[group.name] for group in groups] + [figures.c.metric]
    value = figures.c.value
    rank = func.row_number().over(partition_by=keys, order_by=value).label("rank")
    size = func.count().over(partition_by=keys).label("size")
    ranked = select(*keys, value, rank, size).subquery()
    summed = select(
        *(ranked.c[key.key] for key in keys),
        func.count().label("jobs"),
        func.sum(ranked.c.value).label("total"),
        func.max(ranked.c.value).label("largest"),
        *_percentiles(ranked.c.rank, ranked.c.size, ranked.c.value),
    ).group_by(*(ranked.c[key.key] for key in keys))
    rows = connection.execute(summed).mappings()
    return [_distribution(by, row, {p: row[f"p{p}"] for p in PERCENTS}, 0.0) for row in rows]


def _from_histograms(
    connection: Connection, metrics: Sequence[str], chosen: ReportFilter, by: Grouping, parts: Parts
) -> list[Distribution]:
    exact = _sums(connection, metrics, chosen, by)
    found = connection.execute(_ranked_buckets(statement(histograms_of(metrics), parts, chosen, by), by)).mappings()
    distributions = []
    for row in found:
        known = exact[group_values(by, row), row["metric"]]
        # What stands for the highest bucket may exceed the highest value.
        percentiles = {p: min(value_in(row[f"p{p}"]), known["largest"]) for p in PERCENTS}
        distributions.append(_distribution(by, known, percentiles, RELATIVE_ERROR))
    return distributions


def _of_batches(rows: Iterable[RowMapping], by: Grouping) -> list[Distribution]:
    """Add up rows of `BatchFigureSource`, each with a histogram of its own."""
    found = []
    for (group, metric), same in groupby(rows, key=lambda row: (group_values(by, row), row["metric"])):
        counted = [
            Counted(row["jobs"], row["total"], row["largest"], [(row["buckets"], row["bucket_jobs"])]) for row in same
        ]
        found.append(Counted.sum_of(counted).distribution(group, metric))
    return found


def _ranked_buckets(histograms: Select[Any], by: Grouping) -> Select[Any]:
    """Return the buckets of the percentiles of each group and metric."""
    counted = histograms.subquery()
    keys = [counted.c[f"group_{number}"] for number in range(len(by))] + [counted.c.metric]
    reached = func.sum(counted.c.jobs).over(partition_by=keys, order_by=counted.c.bucket).label("rank")
    size = func.sum(counted.c.jobs).over(partition_by=keys).label("size")
    ranked = select(*keys, counted.c.bucket, reached, size).subquery()
    names = [ranked.c[key.key] for key in keys]
    return select(*names, *_percentiles(ranked.c.rank, ranked.c.size, ranked.c.bucket)).group_by(*names)


def _percentiles(
    rank: ColumnElement[Any], size: ColumnElement[Any], value: ColumnElement[Any]
) -> list[ColumnElement[Any]]:
    return [func.min(case((rank * 100 >= size * percent, value))).label(f"p{percent}") for percent in PERCENTS]


def _distribution(
    by: Grouping, row: RowMapping, percentiles: Mapping[int, float], relative_error: float
) -> Distribution:
    return Distribution(
        group_values(by, row),
        row["metric"],
        row["jobs"],
        row["total"] / row["jobs"],
        row["total"],
        row["largest"],
        percentiles,
        relative_error,
    )
