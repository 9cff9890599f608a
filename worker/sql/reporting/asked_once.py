"""Reports for one page, whose sections and tiles ask for the same figures: each question goes to the database once."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import RowMapping

from worker.sql.reporting.figures import Distribution
from worker.sql.reporting.filters import Grouping, ReportFilter
from worker.sql.reporting.reports import Reports
from worker.sql.reporting.rows import TotalsRow
from worker.sql.rollups.sources import Source

Answer = TypeVar("Answer")


class AskedOnce(Reports):
    """The same reports; what was answered once is answered so again, whatever has happened since."""

    def __init__(self, reports: Reports) -> None:
        super().__init__(reports.engine, exact_jobs=reports.exact_jobs)
        self._answers: dict[tuple[str, ReportFilter, Grouping], Any] = {}

    def span(self, chosen: ReportFilter) -> tuple[datetime, datetime] | None:
        return self._once("span", chosen, (), super().span, chosen)

    def totals(self, chosen: ReportFilter, by: Grouping = ()) -> tuple[TotalsRow, ...]:
        return self._once("totals", chosen, by, super().totals, chosen, by)

    def _counts(self, source: Source, chosen: ReportFilter, by: Grouping) -> Sequence[RowMapping]:
        return self._once(source.table.__tablename__, chosen, by, super()._counts, source, chosen, by)

    def _distributions(
        self, metrics: Sequence[str], chosen: ReportFilter, by: Grouping
    ) -> list[tuple[tuple[Any, ...], str, Distribution | None]]:
        return self._once(" ".join(metrics), chosen, by, super()._distributions, metrics, chosen, by)

    def _once(
        self, name: str, chosen: ReportFilter, by: Grouping, ask: Callable[..., Answer], *arguments: object
    ) -> Answer:
        key = (name, chosen, tuple(by))
        if key not in self._answers:
            self._answers[key] = ask(*arguments)
        answer: Answer = self._answers[key]
        return answer
