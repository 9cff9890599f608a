"""Reports for one page, whose sections and tiles ask for the same figures: each question goes to the database once."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import RowMapping

from worker.sql.reporting import figures
from worker.sql.reporting.figures import Counted, Distribution
from worker.sql.reporting.filters import Bucket, Grouping, ReportFilter
from worker.sql.reporting.parts import asks_for_batches
from worker.sql.reporting.reports import Reports
from worker.sql.reporting.rows import Group, TotalsRow
from worker.sql.rollups.measures import LATENCIES, MEMORY
from worker.sql.rollups.sources import Source

Answer = TypeVar("Answer")


class AskedOnce(Reports):
    """The same reports; what was answered once is answered so again, whatever has happened since."""

    def __init__(self, reports: Reports, step_of: Callable[[datetime, datetime], Bucket]) -> None:
        """`step_of` gives the step by which charts show the time between two moments: figures of all jobs are added up
        from those of each step.
        """
        super().__init__(reports.engine, exact_jobs=reports.exact_jobs)
        self._step_of = step_of
        self._answers: dict[tuple[str, ReportFilter, Grouping], Any] = {}

    def span(self, chosen: ReportFilter) -> tuple[datetime, datetime] | None:
        return self._once("span", chosen, (), super().span, chosen)

    def totals(self, chosen: ReportFilter, by: Grouping = ()) -> tuple[TotalsRow, ...]:
        return self._once("totals", chosen, by, super().totals, chosen, by)

    def _counts(self, source: Source, chosen: ReportFilter, by: Grouping) -> Sequence[RowMapping]:
        return self._once(source.table.__tablename__, chosen, by, super()._counts, source, chosen, by)

    def _figures(self, metrics: Sequence[str], chosen: ReportFilter, by: Grouping) -> list[Distribution]:
        span = self.span(chosen)
        step = None if span is None else self._step_of(*span)
        if step is not None and tuple(by) in ((), (step,)):
            counted = self._once("steps", chosen, (step,), self._in_steps, chosen, step)
            if counted is not None:
                return _added_up(counted, metrics, by)
        return self._once(" ".join(metrics), chosen, by, super()._figures, metrics, chosen, by)

    def _in_steps(self, chosen: ReportFilter, step: Bucket) -> Mapping[tuple[Group, str], Counted] | None:
        """Return every figure of each step of time; None where percentiles are exact, or of a batch."""
        with self._snapshot() as connection:
            if asks_for_batches(chosen, ()) or figures.are_exact(connection, chosen, (), self.exact_jobs):
                return None
            return figures.count(connection, (*LATENCIES, *MEMORY), chosen, (step,))

    def _once(
        self, name: str, chosen: ReportFilter, by: Grouping, ask: Callable[..., Answer], *arguments: object
    ) -> Answer:
        key = (name, chosen, tuple(by))
        if key not in self._answers:
            self._answers[key] = ask(*arguments)
        answer: Answer = self._answers[key]
        return answer


def _added_up(counted: Mapping[tuple[Group, str], Counted], metrics: Sequence[str], by: Grouping) -> list[Distribution]:
    """Return the metrics of each step, or without groups those of all steps together."""
    parts: defaultdict[tuple[Group, str], list[Counted]] = defaultdict(list)
    for (group, metric), of in counted.items():
        if metric in metrics:
            parts[group if by else (), metric].append(of)
    return [Counted.sum_of(of).distribution(group, metric) for (group, metric), of in parts.items()]
