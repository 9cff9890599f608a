"""Charts whose rows have names: bars of a ranking, and the phases of jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from markupsafe import Markup

from worker.readable import format_span
from worker.reports.html.elements import element, percent
from worker.reports.html.scales import Scale, scale_for
from worker.reports.units import Unit, readable


@dataclass(frozen=True, slots=True)
class Ranked:
    """One row of a ranking."""

    name: str
    value: float
    aside: str  # what stands behind the value: the number of jobs, say


@dataclass(frozen=True, slots=True)
class PhaseBar:
    """What a job did for a while. `style` is the colour's name in the page's style sheet."""

    name: str
    style: str
    ms: float


@dataclass(frozen=True, slots=True)
class JobBar:
    """A job's phases from its submission on, and what else is to be told about it."""

    job_id: str
    phases: tuple[PhaseBar, ...]
    facts: tuple[tuple[str, str], ...]  # names and values, for people

    @property
    def total_ms(self) -> float:
        """From submission to the last phase's end."""
        return sum(phase.ms for phase in self.phases)


def ranking(title: str, unit: Unit, rows: Sequence[Ranked], style: str) -> Markup:
    """Return a table of bars, in the order of `rows`."""
    largest = max((row.value for row in rows), default=0.0) or 1.0
    lines = [
        element(
            "tr",
            element("th", row.name, scope="row", title=row.name),
            element("td", _bar(row.value / largest, style), class_="bar", aria_hidden="true"),
            element("td", readable(row.value, unit), class_="number"),
            element("td", row.aside, class_="number aside"),
        )
        for row in rows
    ]
    table = element("table", element("tbody", *lines), class_="ranking")
    return element("figure", element("figcaption", element("h3", title)), table, class_="chart")


def waterfall(title: str, jobs: Sequence[JobBar]) -> Markup:
    """Return a row for each job, its phases side by side on one scale; a row opens to its phases and facts."""
    scale = scale_for([job.total_ms for job in jobs], Unit.MILLISECONDS)
    styles = {phase.name: phase.style for job in jobs for phase in job.phases}
    keys = [element("span", name, class_=f"key {style}") for name, style in styles.items()]
    caption = element("figcaption", element("h3", title), element("div", *keys, class_="legend"))
    axis = element("div", element("span"), _axis(scale), element("span"), class_="job axis", aria_hidden="true")
    return element("figure", caption, axis, *(_job(job, scale) for job in jobs), class_="chart waterfall")


def _job(job: JobBar, scale: Scale) -> Markup:
    starts = [0.0, *accumulate(phase.ms for phase in job.phases)]
    bars = [
        element(
            "rect",
            element("title", f"{phase.name}: {format_span(phase.ms / 1000)}"),
            class_=phase.style,
            x=percent(scale.share(start)),
            width=percent(scale.share(phase.ms)),
            height="100%",
        )
        for start, phase in zip(starts, job.phases, strict=False)
        if phase.ms > 0
    ]
    total = format_span(job.total_ms / 1000)
    row = element(
        "summary",
        element("code", job.job_id, title=job.job_id),
        element("svg", *bars, class_="phases", aria_hidden="true"),
        element("span", total, class_="number"),
        class_="job",
    )
    return element("details", row, element("div", _phases(job), _facts(job), class_="opened"), name="job")


def _phases(job: JobBar) -> Markup:
    lines = [
        element(
            "tr",
            element("th", phase.name, scope="row", class_=f"key {phase.style}"),
            element("td", _bar(phase.ms / job.total_ms if job.total_ms else 0.0, phase.style), class_="bar"),
            element("td", format_span(phase.ms / 1000), class_="number"),
        )
        for phase in job.phases
    ]
    return element("table", element("tbody", *lines), class_="ranking")


def _facts(job: JobBar) -> Markup:
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in job.facts]
    return element("dl", *pairs, class_="facts")


def _axis(scale: Scale) -> Markup:
    last = len(scale.ticks) - 1
    texts = [
        element(
            "text",
            text,
            x=percent(scale.share(value)),
            y=12,
            text_anchor="start" if at == 0 else "end" if at == last else "middle",
            class_="minor" if at % 2 else None,
        )
        for at, (value, text) in enumerate(scale.ticks)
    ]
    return element("svg", *texts, class_="x-axis")


def _bar(share: float, style: str) -> Markup:
    return element("svg", element("rect", class_=style, width=percent(share), height="100%", rx=2), class_="row-bar")
