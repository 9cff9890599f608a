"""What `pagemill report` understands: which jobs, grouped by what, and a kind of report that may be left out."""

from collections.abc import Callable, Collection
from typing import Any, ParamSpec, TypeVar

import click

from worker.cli.options import Since, store_options
from worker.cli.report_output import output_options
from worker.errors import PagemillError
from worker.reports.kinds import By, Kind
from worker.sql.reporting import Dimension, ReportFilter

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_KIND = "summary"
BY = "by"
CHOOSING = {
    "since": click.option("--since", type=Since(), help="Jobs that ended since: 1h, 7d, or an ISO date or time."),
    "until": click.option("--until", type=Since(), help="Jobs that ended before: 1h, 7d, or an ISO date or time."),
    "queue": click.option("--queue", help="Jobs of this queue."),
    "model": click.option("--model", help="Jobs that this model served, or that asked for it."),
    "tenant": click.option("--tenant", help="Jobs of this tenant."),
    "batch": click.option("--batch", help="Jobs of this batch."),
}


class GroupBy(click.ParamType[By]):
    """One dimension of a kind of report, or several with commas between."""

    name = BY

    def __init__(self, kind: Kind) -> None:
        self._names = _dimensions(kind)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> By:
        """Return the dimensions, or fail with those that exist."""
        if isinstance(value, tuple):
            return value
        names = ["tenant", "model"] if value == "tenant-model" else value.split(",")
        try:
            chosen = tuple(self._names[name] for name in names)
        except KeyError:
            self.fail(f"{value!r}: group by {', '.join(self._names)}, or several with commas between", param, ctx)
        if len(set(chosen)) < len(chosen):
            self.fail(f"{value!r} names something twice", param, ctx)
        return chosen


class KindGroup(click.Group):
    """The kinds of reports as commands. Without one it is the summary; flags may come before the kind."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the kind first."""
        if args and args[0] in ctx.help_option_names:
            return super().parse_args(ctx, args)
        with_values = {
            name for param in self.commands[DEFAULT_KIND].params if _takes_value(param) for name in param.opts
        }
        at = 0
        while at < len(args) and args[at].startswith("-"):
            at += 2 if args[at] in with_values else 1
        kind = args[at : at + 1] or [DEFAULT_KIND]
        return super().parse_args(ctx, [*kind, *args[:at], *args[at + 1 :]])


def choosing_options(names: Collection[str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return the flags that choose jobs by these parts of a filter."""

    def add(command: Callable[P, R]) -> Callable[P, R]:
        for name, option in reversed(CHOOSING.items()):
            command = option(command) if name in names else command
        return command

    return add


def kind_options(kind: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return the flags of a kind of report: those that it can tell, the format and the database."""

    def add(command: Callable[P, R]) -> Callable[P, R]:
        command = store_options(output_options(command))
        if kind.dimensions:
            command = _by_option(kind)(command)
        return choosing_options(kind.filters)(command)

    return add


def filter_of(flags: dict[str, Any]) -> ReportFilter:
    """Take the flags that choose jobs out of all flags. Raises PagemillError for times that leave none."""
    chosen = ReportFilter(**{name: flags.pop(name) for name in CHOOSING if name in flags})
    if chosen.since is not None and chosen.until is not None and chosen.since >= chosen.until:
        raise PagemillError("--since: has to be before --until")
    return chosen


def _by_option(kind: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    names = ", ".join(_dimensions(kind))
    default = ",".join(each.value for each in kind.default_by)
    told = f" (default: {default})" if default else ""
    text = f"Rows for each {names}, or several with commas between{told}."
    return click.option("--by", BY, type=GroupBy(kind), default=kind.default_by, help=text)


def _dimensions(kind: Kind) -> dict[str, Dimension]:
    return {each.value: each for each in Dimension if each in kind.dimensions}


def _takes_value(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and not param.is_flag
