"""The page around the charts: one file with style, script and data, and a policy that lets nothing else in."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from worker.reports.html.elements import element, harmless
from worker.reports.tables import ReportTable
from worker.reports.units import Unit

FILES = Path(__file__).parent / "page_files"
MAX_ROWS = 100  # of a table; the other formats have all


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure at the top of the page."""

    title: str
    value: str
    aside: str
    style: str | None = None  # a colour's name


@dataclass(frozen=True, slots=True)
class Section:
    """A topic: what it says in a sentence, its charts, its tables. One without either shows `empty`."""

    id: str
    title: str
    lead: str
    empty: str
    charts: tuple[Markup, ...] = ()
    tables: tuple[ReportTable, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """What the page says. `chosen` are the filters in words."""

    title: str
    chosen: tuple[str, ...]
    made_at: datetime
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]


def to_html(page: Page) -> str:
    """Return the page as one HTML document. Its content security policy allows its own style and script, by their
    hashes, and nothing from anywhere."""
    environment = Environment(
        loader=FileSystemLoader(FILES),
        autoescape=True,
        finalize=harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (Markup((FILES / name).read_text("utf-8")) for name in ("style.css", "script.js"))
    return environment.get_template("page.html.jinja").render(
        page=page,
        style=style,
        script=script,
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'",
        table=html_table,
    )


def html_table(table: ReportTable) -> Markup:
    """Return a report's table, the first rows of a long one; a column's heading sorts by it."""
    numeric = [column.unit is not Unit.TEXT for column in table.columns]
    rows = list(zip(table.rows, table.readable_rows(), strict=True))[:MAX_ROWS]
    heads = [
        element("th", column.title, scope="col", class_="number" if right else None)
        for column, right in zip(table.columns, numeric, strict=True)
    ]
    trends = table.trend.lines if table.trend is not None else ()
    if table.trend is not None:
        heads.append(element("th", table.trend.title, scope="col"))
    body = []
    for at, (values, texts) in enumerate(rows):
        cells = [
            element("td", text, class_="number" if right else None, data_sort=_sort_key(value) if right else None)
            for text, value, right in zip(texts, values, numeric, strict=True)
        ]
        body.append(element("tr", *cells, *(element("td", spark(line)) for line in trends[at : at + 1])))
    written = element("table", element("thead", element("tr", *heads)), element("tbody", *body), class_="sortable")
    hidden = len(table.rows) - len(rows)
    note = element("p", f"{hidden:,} more rows are in the other formats.", class_="note") if hidden else ""
    notes = [element("p", text, class_="note") for text in table.notes]
    return element(
        "div", element("h3", table.title), element("div", written, class_="scroll"), note, *notes, class_="table"
    )


def spark(values: Sequence[float | None]) -> Markup:
    """Return a small line without axes."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    path, pen_is_down = [], False
    for at, value in enumerate(values):
        if value is not None:
            path.append(f"{'L' if pen_is_down else 'M'}{at} {20 - value / top * 18:.1f}")
            path.extend(["h0.01"] if not pen_is_down else [])  # a point alone is a dot
        pen_is_down = value is not None
    line = element("path", d="".join(path))
    view = f"-1 0 {max(len(values), 2) + 1} 22"
    return element("svg", line, class_="spark", viewBox=view, preserveAspectRatio="none", aria_hidden="true")


def _sort_key(value: object) -> object:
    return value.timestamp() if isinstance(value, datetime) else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
