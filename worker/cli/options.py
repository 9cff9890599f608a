"""Options that several commands share, and the types of their values."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from worker.jobs import IDENTIFIER
from worker.settings_types import QUEUE_PATTERN, QUEUE_RULE, parse_size

P = ParamSpec("P")
R = TypeVar("R")
Decorator = Callable[[Callable[P, R]], Callable[P, R]]

_SPAN = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def queue_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the flags that say where Redis is, each named as its setting."""
    return _apply(
        command,
        click.option("--redis-url", metavar="URL", help="Redis or Valkey; unset is the embedded one in --data-dir."),
        click.option("--data-dir", metavar="DIR", help="Folder of the embedded queue and of SQLite."),
    )


def store_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the flags that say where the database is, each named as its setting."""
    return _apply(
        command,
        click.option("--database-url", metavar="URL", help="sqlite:/// or postgresql://; unset is in --data-dir."),
        click.option("--data-dir", metavar="DIR", help="Folder of the embedded queue and of SQLite."),
    )


def service_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the flags that say where Redis and the database are."""
    database = click.option(
        "--database-url", metavar="URL", help="sqlite:/// or postgresql://; unset is in --data-dir."
    )
    return database(queue_options(command))


class Size(click.ParamType[int]):
    """A number of bytes, written as 24GiB, 500MB or 1048576."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes, or fail with the forms that are understood."""
        try:
            size = parse_size(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)
        assert isinstance(size, int)
        return size


class QueueName(click.ParamType[str]):
    """The name of a queue."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or fail with what it may consist of."""
        if not QUEUE_PATTERN.fullmatch(value):
            self.fail(f"{value!r} is not a queue's name: {QUEUE_RULE}", param, ctx)
        return str(value)


class TenantName(click.ParamType[str]):
    """The name of a tenant."""

    name = "tenant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or fail with what it may consist of."""
        if not re.fullmatch(IDENTIFIER, value):
            self.fail(f"{value!r} is not a tenant's name: up to 128 letters, digits, '.', '_', ':' and '-'", param, ctx)
        return str(value)


class Since(click.ParamType[datetime]):
    """A moment in the past: a span before now (90s, 30m, 1h, 7d, 2w), or an ISO date or time, local by default."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the moment in UTC, or fail with the forms that are understood."""
        if isinstance(value, datetime):
            return value
        span = _SPAN.fullmatch(value)
        try:
            if span is not None:
                return datetime.now(UTC) - timedelta(**{_UNITS[span["unit"]]: float(span["number"])})
            return datetime.fromisoformat(value).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time; write for example 1h, 7d, 2026-05-01 or 2026-05-01T08:00", param, ctx)


class Span(click.ParamType[timedelta]):
    """A span of time: 90s, 30m, 12h, 7d, 2w."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return the span, or fail with the forms that are understood."""
        if isinstance(value, timedelta):
            return value
        span = _SPAN.fullmatch(value)
        try:
            length = timedelta(0) if span is None else timedelta(**{_UNITS[span["unit"]]: float(span["number"])})
        except OverflowError:
            length = timedelta(0)
        if length <= timedelta(0):
            self.fail(f"{value!r} is not a span of time; write for example 30m, 12h or 7d", param, ctx)
        return length


class Until(click.ParamType[str]):
    """A moment to come: a span from now (30s, 10m, 2h, 1d), or an ISO date and time, local by default."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the moment in ISO 8601, UTC, or fail with the forms that are understood."""
        span = _SPAN.fullmatch(value)
        now = datetime.now(UTC)
        try:
            if span is not None:
                moment = now + timedelta(**{_UNITS[span["unit"]]: float(span["number"])})
            else:
                moment = datetime.fromisoformat(value).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time; write for example 10m, 2h or 2026-05-01T08:00", param, ctx)
        if moment <= now:
            self.fail(f"{value!r} is in the past", param, ctx)
        return moment.isoformat()


class TextFile(click.ParamType[str]):
    """A file whose text is the value."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, or fail naming the file."""
        try:
            return Path(value).read_text("utf-8")
        except OSError as error:
            self.fail(f"cannot read {value}: {error.strerror}", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{value} is not UTF-8", param, ctx)


class SchemaFile(click.ParamType[dict[str, Any]]):
    """A file that holds a JSON schema; the form of output that a job asks for with it."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Return a job's `response_format`, or fail naming the file."""
        try:
            schema = json.loads(TextFile().convert(value, param, ctx))
        except (ValueError, RecursionError) as error:
            self.fail(f"{value} is not JSON: {error}", param, ctx)
        if not isinstance(schema, dict):
            self.fail(f"{value} holds no JSON object", param, ctx)
        name = re.sub(r"[^A-Za-z0-9_-]", "_", Path(value).stem)[:64] or "schema"
        return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def _apply(command: Callable[P, R], *options: Decorator[P, R]) -> Callable[P, R]:
    for option in reversed(options):
        command = option(command)
    return command
