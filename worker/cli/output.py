"""What commands print: data on standard output, everything else on standard error.

Tables are in `worker.cli.tables`, which needs rich; a producer's path does not.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from worker.readable import without_controls


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def for_display(text: str) -> str:
    """Return a model's or a user's text as it may be printed: exact in a pipe or a file, harmless on a terminal."""
    return without_controls(text) if is_terminal() else text


def print_text(text: str) -> None:
    """Print a text that Pagemill did not write."""
    click.echo(for_display(text), color=True)  # click would take escape sequences out of a pipe's exact text


def print_json(value: object) -> None:
    """Print one JSON document, in ASCII so that no terminal acts on it."""
    click.echo(json_text(value))


def json_text(value: object) -> str:
    """Return one JSON document in ASCII, on several lines."""
    return json.dumps(value, default=_to_json, indent=2)


def print_json_line(value: object) -> None:
    """Print one JSON document on one line, for a stream of them."""
    click.echo(json.dumps(value, default=_to_json))


def message(text: str) -> None:
    """Tell the user something that is not data, on standard error."""
    click.echo(text, err=True)


def _to_json(value: Any) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
