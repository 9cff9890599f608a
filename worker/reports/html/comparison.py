"""The page's section of two runs: each figure's change as a bar to the left or the right of nothing."""

from markupsafe import Markup

from worker.reports.comparing import LARGE_CHANGE, ComparisonRow, Side, Verdict, comparison_table
from worker.reports.html.elements import element, percent
from worker.reports.html.page import Section

STYLES = {
    Verdict.BETTER: "teal",
    Verdict.MUCH_BETTER: "teal",
    Verdict.WORSE: "red",
    Verdict.MUCH_WORSE: "red",
    Verdict.DIFFERENT: "blue",
}
FULL = 1.0  # the change that fills half of a bar; larger ones are cut there, and their percentage tells


def comparison_section(rows: tuple[ComparisonRow, ...], a: Side, b: Side) -> Section:
    """Return two runs as a table with bars."""
    much = [row for row in rows if row.verdict in (Verdict.MUCH_BETTER, Verdict.MUCH_WORSE)]
    return Section(
        id="compare",
        title="B against A",
        lead=f"{len(much)} of {len(rows)} figures are better or worse by more than {LARGE_CHANGE:.0%}. "
        "A bar to the right is more than in A, to the left less.",
        empty="",
        charts=(_bars(rows, a, b),),
    )


def _bars(rows: tuple[ComparisonRow, ...], a: Side, b: Side) -> Markup:
    heads = [
        element("th", "figure", scope="col"),
        *(element("th", title, scope="col", class_="number") for title in ("A", "B")),
        element("th", scope="col", class_="bar"),
        element("th", "change", scope="col", class_="number"),
        element("th", "verdict", scope="col"),
        *(element("th", f"jobs of {name}", scope="col", class_="number") for name in ("A", "B")),
    ]
    texts = comparison_table(rows, a, b).for_people().readable_rows()
    lines = [_line(row, *cells) for row, cells in zip(rows, texts, strict=True)]
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *lines), class_="comparison")
    return element("figure", element("div", table, class_="scroll"), class_="chart wide")


def _line(row: ComparisonRow, metric: str, a: str, b: str, change: str, verdict: str, *jobs: str) -> Markup:
    style = STYLES.get(Verdict(row.verdict))
    return element(
        "tr",
        element("th", metric, scope="row"),
        *(element("td", text, class_="number") for text in (a, b)),
        element("td", _bar(row.change, style or "slate"), class_="bar", aria_hidden="true"),
        element("td", change, class_="number"),
        element("td", verdict, class_=f"verdict {style}" if style else None),
        *(element("td", text, class_="number") for text in jobs),
    )


def _bar(change: float | None, style: str) -> Markup:
    half = min(abs(change or 0.0), FULL) / FULL / 2
    bar = element(
        "rect",
        class_=style,
        x=percent(0.5 if (change or 0.0) >= 0 else 0.5 - half),
        width=percent(half),
        height="100%",
    )
    middle = element("line", class_="grid", x1="50%", x2="50%", y1="0", y2="100%")
    return element("svg", middle, bar, class_="row-bar")
