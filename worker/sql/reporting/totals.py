"""What became of jobs, by group: those that ended from roll-ups and rows, the others from rows."""

from typing import Any

from sqlalchemy import Connection, func, null, select, text

from worker.records import JobState
from worker.sql.reporting.filters import Grouping, ReportFilter, group_labels, group_values, order_key
from worker.sql.reporting.parts import divide, job_conditions, statement
from worker.sql.reporting.rows import Group, TotalsRow
from worker.sql.rollups.sources import TOTALS
from worker.sql.tables import UNFINISHED, JobRow, UtcDateTime

_ENDED = ("jobs_done", "jobs_failed", "jobs_cancelled", "jobs_dead")
_UNFINISHED = ("jobs_queued", "jobs_running")
_SUMS = (*_ENDED, "jobs_with_retries", "prompt_tokens", "completion_tokens", "preemptions")


def ratio(part: float, whole: float | None) -> float | None:
    """Return a part of a whole, None where that is nothing or unknown."""
    return None if whole is None or whole <= 0 else part / whole


def group_totals(connection: Connection, chosen: ReportFilter, by: Grouping) -> tuple[TotalsRow, ...]:
    """Return a row for each group, sorted; one without groups, even if there are no jobs."""
    ended = connection.execute(statement(TOTALS, divide(connection, TOTALS, chosen, by), chosen, by)).mappings()
    found: dict[Group, dict[str, Any]] = {group_values(by, row): dict(row) for row in ended}
    for group, unfinished in _unfinished(connection, chosen, by).items():
        row = found.setdefault(group, {})
        claims = [at for at in (row.get("first_claim_at"), unfinished.pop("first_claim_at")) if at is not None]
        for name, count in unfinished.items():
            row[name] = row.get(name, 0) + count
        row["first_claim_at"] = min(claims, default=None)
    if not by:
        found.setdefault((), {})
    return tuple(_row(group, found[group]) for group in sorted(found, key=order_key))


def _unfinished(connection: Connection, chosen: ReportFilter, by: Grouping) -> dict[Group, dict[str, Any]]:
    """Return what there is to say of jobs that wait or run; none where only jobs that ended by some time count."""
    if chosen.until is not None:
        return {}
    groups = group_labels(by, JobRow.__table__.c, null().cast(UtcDateTime))
    counted = select(
        *groups,
        func.count().filter(JobRow.state == JobState.QUEUED).label("jobs_queued"),
        func.count().filter(JobRow.state == JobState.RUNNING).label("jobs_running"),
        func.count().filter(JobRow.attempt_count > 1).label("jobs_with_retries"),
        func.min(JobRow.started_at).label("first_claim_at"),
    ).where(text(UNFINISHED), *job_conditions(chosen))
    rows = connection.execute(counted.group_by(*groups) if groups else counted).mappings().all()
    return {
        group_values(by, row): {name: row[name] for name in (*_UNFINISHED, "jobs_with_retries", "first_claim_at")}
        for row in rows
    }


def _row(group: Group, row: dict[str, Any]) -> TotalsRow:
    sums = {name: row.get(name) or 0 for name in (*_SUMS, *_UNFINISHED)}
    hits = row.get("prefix_hit_tokens") or 0
    return TotalsRow(
        group=group,
        jobs=sum(sums[name] for name in (*_ENDED, *_UNFINISHED)),
        **sums,
        prefix_hit_tokens=hits,
        prefix_hit_share=ratio(hits, row.get("prefix_prompt_tokens")),
        first_claim_at=row.get("first_claim_at"),
        last_end_at=row.get("last_end_at"),
    )
