"""Counts, means and percentiles of latency and memory figures.

Exact where few jobs are asked for and all of their rows are there; else from histograms, with a known error.
Percentiles are by nearest rank: the smallest value that at least p percent of the values do not exceed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, case, func, select, text

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
from worker.sql.rollups.sources import batch_figures_of, figures_of, histograms_of
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


def distributions(
    connection: Connection, metrics: Sequence[str], chosen: ReportFilter, by: Grouping, exact_jobs: int = EXACT_JOBS
) -> list[Distribution]:
    """Return what is known of each metric of each group, exactly up to `exact_jobs` jobs."""
    of_batches = batch_figures_of(metrics)
    if asks_for_batches(chosen, by):
        parts = divide(connection, of_batches, chosen, by)
    else:
        parts = divide_histograms(connection, chosen, by)
    if not is_purged(connection, parts) and _are_few(connection, chosen, exact_jobs):
        return _exact(connection, metrics, chosen, by)
    if connection.dialect.name == "postgresql":  # by default it would sort on disk
        connection.execute(text("SET LOCAL work_mem = '64MB'"))
    if asks_for_batches(chosen, by) and parts.rolled:
        return _of_batches(connection.execute(statement(of_batches, parts, chosen, by)).mappings(), by)
    return _from_histograms(connection, metrics, chosen, by, parts)


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
    sums = figures_of(metrics)
    totals = statement(sums, divide(connection, sums, chosen, by), chosen, by)
    exact = {(group_values(by, row), row["metric"]): row for row in connection.execute(totals).mappings()}
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
    for _, same in groupby(rows, key=lambda row: (*group_values(by, row), row["metric"])):
        parts = list(same)
        summed = {**parts[0], "jobs": sum(row["jobs"] for row in parts), "total": sum(row["total"] for row in parts)}
        summed["largest"] = max(row["largest"] for row in parts)
        percentiles = {p: min(value, summed["largest"]) for p, value in _percentiles_of(parts).items()}
        found.append(_distribution(by, summed, percentiles, RELATIVE_ERROR))
    return found


def _percentiles_of(histograms: Iterable[RowMapping]) -> dict[int, float]:
    lists = (zip(row["buckets"], row["bucket_jobs"], strict=True) for row in histograms)
    counts = sorted(chain.from_iterable(lists))
    ranks = list(accumulate(jobs for _, jobs in counts))
    return {p: value_in(counts[bisect_left(ranks, ranks[-1] * p / 100)][0]) for p in PERCENTS}


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
    by: Grouping, row: Mapping[Any, Any], percentiles: Mapping[int, float], relative_error: float
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
