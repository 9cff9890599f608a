"""Charts over time: lines and stacked bars, as SVG that follows the page's width.

A chart's numbers are a table under it, from which the page's script reads what it shows under the pointer. Positions
are percentages, so that text keeps its size on a phone; lines are stretched by a nested viewBox.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from worker.reports.html.elements import element, joined, percent
from worker.reports.html.scales import Scale, moments_for, scale_for
from worker.reports.timeline import Timeline
from worker.reports.units import Unit, readable

BAR_GAP = 0.18  # of a step
WIDTH, HEIGHT = 1000, 100  # of the viewBox that lines are drawn in


@dataclass(frozen=True, slots=True)
class Series:
    """One figure over time. `style` is the colour's name in the page's style sheet."""

    name: str
    style: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """What a chart shows. All series have a value for each of the timeline's steps."""

    title: str
    unit: Unit
    timeline: Timeline
    series: tuple[Series, ...]


def line_chart(chart: Chart) -> Markup:
    """Return a line for each series, broken where nothing is known; the legend's buttons hide and show them."""
    scale = scale_for([value for series in chart.series for value in series.values], chart.unit)
    drawn = [
        element("g", _line(series, scale), class_=f"series {series.style}", data_series=at)
        for at, series in enumerate(chart.series)
    ]
    return _figure(chart, scale, joined(*drawn), legend=_buttons(chart.series))


def stacked_bars(chart: Chart) -> Markup:
    """Return a bar for each step, the first series at its foot."""
    totals = [
        sum(value or 0.0 for value in values)
        for values in zip(*(series.values for series in chart.series), strict=True)
    ]
    scale = scale_for(totals, chart.unit)
    bars = []
    for at in range(chart.timeline.count):
        foot = 0.0
        for series in chart.series:
            value = series.values[at] or 0.0
            if value > 0:
                bars.append(_bar(at, chart.timeline.count, scale.share(foot), scale.share(foot + value), series.style))
            foot += value
    return _figure(chart, scale, joined(*bars), legend=_keys(chart.series))


def _bar(at: int, count: int, foot: float, head: float, style: str) -> Markup:
    return element(
        "rect",
        class_=style,
        x=percent((at + BAR_GAP / 2) / count),
        width=percent((1 - BAR_GAP) / count),
        y=percent(1 - head),
        height=percent(head - foot),
    )


def _line(series: Series, scale: Scale) -> Markup:
    """Return the stretches where values are known as one path, and a dot where a value has no neighbour."""
    count = len(series.values)
    path, dots, pen_is_down = [], [], False
    for at, value in enumerate(series.values):
        if value is None:
            pen_is_down = False
            continue
        x, y = (at + 0.5) / count, 1 - scale.share(value)
        path.append(f"{'L' if pen_is_down else 'M'}{x * WIDTH:.1f} {y * HEIGHT:.2f}")
        neighbours = (*series.values[max(at - 1, 0) : at], *series.values[at + 1 : at + 2])
        if all(neighbour is None for neighbour in neighbours):
            dots.append(element("circle", cx=percent(x), cy=percent(y), r=4))
        pen_is_down = True
    stretched = element(
        "svg",
        element("path", d="".join(path)),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
    )
    return joined(stretched, *dots)


def _figure(chart: Chart, scale: Scale, drawn: Markup, legend: Markup) -> Markup:
    grid = [
        element("line", class_="grid", x1="0", x2="100%", y1=percent(y := 1 - scale.share(value)), y2=percent(y))
        for value, _ in scale.ticks
    ]
    values = [
        element("text", text, x="100%", dx=-8, dy="0.32em", y=percent(1 - scale.share(value)), text_anchor="end")
        for value, text in scale.ticks
    ]
    moments = [
        element(
            "text", tick.text, x=percent(tick.at), y=16, text_anchor="middle", class_="minor" if tick.is_minor else None
        )
        for tick in moments_for(chart.timeline)
    ]
    cursor = element("line", class_="cursor", x1="0", x2="0", y1="0", y2="100%")
    label = f"{chart.title}, {chart.timeline.count} steps of a {chart.timeline.step}. Arrow keys read the values."
    frame = element(
        "div",
        element("svg", *values, class_="y-axis", aria_hidden="true"),
        element("svg", *grid, drawn, cursor, class_="plot", role="img", aria_label=label, tabindex="0"),
        element("svg", *moments, class_="x-axis", aria_hidden="true"),
        element("p", class_="tip", role="status", hidden=True),
        class_="frame",
    )
    caption = element("figcaption", element("h3", chart.title), legend)
    return element("figure", caption, frame, _numbers(chart), class_="chart")


def _numbers(chart: Chart) -> Markup:
    head = element("tr", element("th", "from (UTC)", scope="col"), *_heads(chart.series))
    body = [
        element(
            "tr",
            element("th", chart.timeline.label(moment), scope="row"),
            *(element("td", readable(series.values[at], chart.unit)) for series in chart.series),
        )
        for at, moment in enumerate(chart.timeline.moments())
    ]
    table = element("table", element("thead", head), element("tbody", *body))
    return element("details", element("summary", "Numbers"), element("div", table, class_="scroll"), class_="numbers")


def _heads(series: Sequence[Series]) -> list[Markup]:
    return [element("th", one.name, scope="col", class_=f"key {one.style}") for one in series]


def _buttons(series: Sequence[Series]) -> Markup:
    buttons = [
        element("button", one.name, type="button", class_=f"key {one.style}", aria_pressed="true", data_series=at)
        for at, one in enumerate(series)
    ]
    return element("div", *buttons, class_="legend")


def _keys(series: Sequence[Series]) -> Markup:
    return element("div", *(element("span", one.name, class_=f"key {one.style}") for one in series), class_="legend")
