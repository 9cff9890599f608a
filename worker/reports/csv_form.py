"""Reports as CSV: one header line, raw values, cells that no spreadsheet runs."""

import csv
import io
from datetime import datetime

from worker.reports.tables import ReportTable, Value
from worker.spreadsheets import defused


def to_csv(table: ReportTable) -> str:
    """Return the table as CSV: names of columns first, then a line a row; times in ISO 8601, nothing for None."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows([_cell(value) for value in row] for row in table.rows)
    return text.getvalue()


def _cell(value: Value) -> str | int | float | None:
    if isinstance(value, datetime):
        return value.isoformat()
    return defused(value) if isinstance(value, str) else value
