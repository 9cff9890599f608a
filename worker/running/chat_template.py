"""A model's chat template: transformers' sandbox, and bounds on what a template may cost. None comes from a job."""

import re
import sys
from collections.abc import Callable, Sequence, Sized
from functools import wraps
from types import FrameType
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import _compile_jinja_template

MAX_CHARACTERS = 8 * 1024 * 1024  # of what a template writes, and of a text that it makes on the way
MAX_LINES = 2_000_000  # of a template's compiled lines that one rendering runs: about two seconds
MAX_EXPONENT = 64
MAX_WIDTH = 100  # a number that a filter of `FILTERS_WITH_WIDTHS` may be given
FILTERS_WITH_WIDTHS = ("center", "indent", "tojson", "wordwrap")
WITHOUT_BOUNDS = ("format", "lipsum")  # jinja2's own, a filter and a function; no chat needs them
TEMPLATE_FILE = "<template>"  # jinja2's name for what it compiled from a text
LONG_FIELD = re.compile(r"\d{5}|\*")  # a width or precision in a format


class TemplateTooCostly(TemplateError):
    """A template that goes beyond a bound."""


class ChatTemplate:
    """One template, compiled."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._template = _compiled(source)

    def render(self, **variables: Any) -> str:
        """Return the text. Raises TemplateError, or whatever an expression of the template raises."""
        parts, size = [], 0
        before = sys.gettrace()
        sys.settrace(_LineBudget().trace)  # of this thread
        try:
            for part in self._template.generate(**variables):
                size += len(part)
                _check_size(size)
                parts.append(part)
        finally:
            sys.settrace(before)
        return "".join(parts)


class _LineBudget:
    """Counts the lines of a template that run: a loop that writes nothing would not be noticed otherwise."""

    def __init__(self) -> None:
        self._left = MAX_LINES

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._trace_line if frame.f_code.co_filename == TEMPLATE_FILE else None

    def _trace_line(self, frame: FrameType, event: str, argument: object) -> Any:
        self._left -= 1
        if self._left < 0:
            raise TemplateTooCostly(f"it runs more than {MAX_LINES} lines")
        return self._trace_line


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on the operators and methods that make large values of small ones."""

    intercepted_binops = frozenset(["*", "**", "%", "+"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`. Raises TemplateTooCostly."""
        if operator == "*":
            for sized, times in ((left, right), (right, left)):
                if isinstance(sized, Sized) and isinstance(times, int):
                    _check_size(len(sized) * times)
        elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            _check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, str) and LONG_FIELD.search(left):
            raise TemplateTooCostly("it formats with a width of more than four digits")
        elif operator == "**" and (abs(left) > MAX_CHARACTERS or abs(right) > MAX_EXPONENT):
            raise TemplateTooCostly(f"it raises to a power of more than {MAX_EXPONENT}")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *arguments: Any, **named: Any) -> Any:
        """Call what a template calls. Raises TemplateTooCostly."""
        text = getattr(obj, "__self__", None)
        if isinstance(text, str):
            _check_method(text, obj.__name__, arguments)
        return super().call(context, obj, *arguments, **named)


def _check_method(text: str, name: str, arguments: Sequence[Any]) -> None:
    if name in ("format", "format_map") and LONG_FIELD.search(text):
        raise TemplateTooCostly("it formats with a width of more than four digits")
    if name == "replace" and len(arguments) > 1:
        _check_size(len(text) + text.count(arguments[0]) * len(arguments[1]))
    for argument in arguments:
        if isinstance(argument, int):
            _check_size(argument)
        elif name == "join" and isinstance(argument, Sequence):
            _check_size(sum(len(part) + len(text) for part in argument))


def _bounded_join(parts: Sequence[Any]) -> str:
    """Join texts as the operator ~ does."""
    texts = [str(part) for part in parts]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _compiled(source: str) -> Template:
    """Return the template with transformers' filters, globals and extensions, within bounds."""
    theirs = _compile_jinja_template("").environment  # not of the source: it would compute constants, without bounds
    environment = _BoundedEnvironment(
        trim_blocks=theirs.trim_blocks,
        lstrip_blocks=theirs.lstrip_blocks,
        extensions=[type(extension) for extension in theirs.extensions.values()],
        optimized=False,
    )
    environment.globals.update(theirs.globals)
    environment.filters.update(theirs.filters)
    environment.filters.update({name: _narrow(theirs.filters[name]) for name in FILTERS_WITH_WIDTHS})
    for name in WITHOUT_BOUNDS:
        environment.filters.pop(name, None)
        environment.globals.pop(name, None)
    compiled = environment.from_string(source)
    compiled.root_render_func.__globals__["str_join"] = _bounded_join
    return compiled


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def narrow(*arguments: Any, **named: Any) -> Any:
        if any(isinstance(value, int) and value > MAX_WIDTH for value in (*arguments, *named.values())):
            raise TemplateTooCostly(f"it asks for a width of more than {MAX_WIDTH}")
        return function(*arguments, **named)

    return narrow


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise TemplateTooCostly(f"it makes a text of more than {MAX_CHARACTERS} characters")
