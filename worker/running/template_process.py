"""Renders chat templates, in a process of its own (`worker.confined`): what transformers does, without transformers.

A test holds the two to the same texts.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_CHARACTERS = 8 * 1024 * 1024  # of what a template writes
MAX_MESSAGE_CHARACTERS = 1000
KEPT_TEMPLATES = 4  # compiled; a model has one or two


def answer(wanted: Mapping[str, Any], data: bytes) -> dict[str, str]:
    """Return the text of a template, or what is the matter with it in a line."""
    try:
        return {"text": _rendered(_compiled(wanted["source"]), wanted["variables"])}
    except MemoryError:
        raise
    except Exception as error:  # whatever its expressions raise
        message = (str(error).splitlines() or [""])[0] or type(error).__name__
        return {"problem": message[:MAX_MESSAGE_CHARACTERS]}


def _rendered(template: Template, variables: Mapping[str, Any]) -> str:
    parts, size = [], 0
    for part in template.generate(variables):
        size += len(part)
        if size > MAX_CHARACTERS:
            raise TemplateError(f"it makes a text of more than {MAX_CHARACTERS} characters")
        parts.append(part)
    return "".join(parts)


@lru_cache(KEPT_TEMPLATES)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(source)


class _Generation(Extension):
    """The block `generation`, which shows trainers what an assistant wrote: here it is its content."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Macro) -> str:
        return caller()


class _Dict:
    """`dict`, without a class's attributes."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """`namespace`, whose attributes may not be Python's own."""

    def __init__(self, /, *arguments: Any, **named: Any) -> None:
        values = dict(*arguments, **named)
        for name in values:
            _check_name(name)
        super().__init__(values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may have no attribute {name!r}: it begins with an underscore")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
