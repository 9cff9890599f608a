"""A model's chat template: transformers' sandbox, and bounds on what a template may cost. None comes from a job."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import _compile_jinja_template

MAX_CHARACTERS = 8 * 1024 * 1024  # of what a template writes, and of a text that it makes on the way
MAX_ROUNDS = 1_000_000  # of loops, and calls, of one rendering: about a second
MAX_EXPONENT = 64
MAX_WIDTH = 100  # a number that a filter of `FILTERS_WITH_WIDTHS` may be given
FILTERS_WITH_WIDTHS = ("center", "indent", "tojson", "wordwrap")
WITHOUT_BOUNDS = ("format", "lipsum")  # jinja2's own, a filter and a function; no chat needs them
ROUNDS_FILTER = "pagemill_rounds"  # applied to what a loop goes through
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
        environment = self._template.environment
        assert isinstance(environment, _BoundedEnvironment), "as it was compiled"
        parts, size = [], 0
        environment.begin()
        for part in self._template.generate(**variables):
            size += len(part)
            _check_size(size)
            parts.append(part)
        return "".join(parts)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on the operators and methods that make large values of small ones, and on rounds.

    Rounds are counted in the template's own loops. A trace function would count lines, but is for debuggers; and Python
    3.11 calls one for ever while some thread, a hung function's, has an exception that it does not take.
    """

    intercepted_binops = frozenset(["*", "**", "%", "+"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._rounds: ContextVar[int] = ContextVar("rounds")  # of the rendering in this thread
        self.filters[ROUNDS_FILTER] = self._counted

    def begin(self) -> None:
        """Note the start of a rendering."""
        self._rounds.set(0)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, ROUNDS_FILTER, [], [], None, None, lineno=loop.lineno)
        return tree

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._count()
            yield value

    def _count(self) -> None:
        rounds = self._rounds.get() + 1
        self._rounds.set(rounds)
        if rounds > MAX_ROUNDS:
            raise TemplateTooCostly(f"it runs more than {MAX_ROUNDS} rounds of loops and calls")

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
        self._count()
        if isinstance(obj, LoopContext) and arguments:  # a recursive loop, with other values
            arguments = (self._counted(arguments[0]), *arguments[1:])
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
