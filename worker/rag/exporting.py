"""Summaries as Markdown, JSON lines or CSV, for people, programs and spreadsheets."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum

from worker.sql.summaries import SummaryRecord

COLUMNS = ("source", "title", "summary", "current", "model", "finish_reason", "completion_tokens", "ended_at", "job_id")

_FORMULA = re.compile(r"[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>&#|~])")


class ExportFormat(StrEnum):
    """What summaries are written as."""

    MARKDOWN = "markdown"
    JSONL = "jsonl"
    CSV = "csv"


def export(records: Iterable[SummaryRecord], form: ExportFormat, title: str) -> Iterator[str]:
    """Yield the text of an export, a line or a section at a time, each with its newline. `title` heads Markdown."""
    if form is ExportFormat.MARKDOWN:
        yield f"# {_escaped(title)}\n"
        for record in records:
            yield _section(record)
    elif form is ExportFormat.JSONL:
        for record in records:
            yield json.dumps(_fields(record), ensure_ascii=False) + "\n"
    else:
        yield _csv_line(COLUMNS)
        for record in records:
            yield _csv_line([_defused(value) for value in _fields(record).values()])


def _fields(record: SummaryRecord) -> dict[str, object]:
    values = (
        record.source,
        record.title,
        record.text,
        record.is_current,
        record.model,
        record.finish_reason,
        record.completion_tokens,
        None if record.ended_at is None else record.ended_at.isoformat(),
        record.job_id,
    )
    return dict(zip(COLUMNS, values, strict=True))


def _section(record: SummaryRecord) -> str:
    note = "" if record.is_current else "\n*Of an earlier version of the document.*\n"
    # The summary itself may be Markdown, but no HTML: a model's output is not to be trusted with that.
    text = (record.text or "").replace("&", "&amp;").replace("<", "&lt;")
    return f"\n## {_escaped(record.title)}\n\n*{_escaped(record.source)}*\n{note}\n{text}\n"


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _defused(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _csv_line(cells: Iterable[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
