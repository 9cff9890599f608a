"""A model's chat template: transformers' sandbox, and bounds on what a template may cost. None comes from a job."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import _compile_jinja_template

MAX_CHARACTERS = 8 * 1024 * 1024  # of what a template writes, and of a text that it makes on the way
MAX_ROUNDS = 1_000_000  # of loops, and calls, of one rendering: about a second
MAX_SECONDS = 2.0  # of the processor, for one rendering: a round may do much
MAX_EXPONENT = 64
MAX_WIDTH = 100  # a number that a filter of `FILTERS_WITH_WIDTHS` may be given
FILTERS_WITH_WIDTHS = ("batch", "center", "indent", "round", "slice", "tojson", "wordwrap")
WRITING_FILTERS = ("join", "string", "tojson")  # they make a text of a value
# jinja2's own; no chat needs them.
WITHOUT_BOUNDS = ("format", "lipsum", "pprint", "striptags", "urlize", "xmlattr")
ROUNDS_FILTER = "pagemill_rounds"  # applied to what a loop goes through
MAX_DIGITS = 4
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
        super().__init__(**options, finalize=_checked)
        self._rounds: ContextVar[int] = ContextVar("rounds")  # of the rendering in this thread
        self._ends_at: ContextVar[float] = ContextVar("ends_at")  # on the clock of this thread's processor time
        self.filters[ROUNDS_FILTER] = self._counted

    def begin(self) -> None:
        """Note the start of a rendering."""
        self._rounds.set(0)
        self._ends_at.set(time.thread_time() + MAX_SECONDS)

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
        if time.thread_time() > self._ends_at.get():
            raise TemplateTooCostly(f"it takes more than {MAX_SECONDS} s")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`. Raises TemplateTooCostly."""
        if operator == "*":
            for sized, times in ((left, right), (right, left)):
                if isinstance(sized, Sized) and isinstance(times, int):
                    _check_size(len(sized) * times)
        elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            _check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right)
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
            _check_method(text, obj.__name__, (*arguments, *named.values()))
        return super().call(context, obj, *arguments, **named)


def _check_method(text: str, name: str, arguments: Sequence[Any]) -> None:
    if name in ("format", "format_map"):
        _check_format(text, arguments)
    if name == "replace" and len(arguments) > 1:
        _check_size(len(text) + text.count(arguments[0]) * len(arguments[1]))
    if name == "expandtabs":
        _check_size(len(text) + text.count("\t") * max((one for one in arguments if isinstance(one, int)), default=8))
    for argument in arguments:
        if isinstance(argument, int):
            _check_size(argument)
        elif name == "join" and isinstance(argument, Sequence):
            _check_size(sum(len(part) + len(text) for part in argument))


def _check_format(text: str, values: Any) -> None:
    if LONG_FIELD.search(text):
        raise TemplateTooCostly("it formats with a width of more than four digits")
    fields = text.count("%") + text.count("{")
    _check_size(len(text) + fields * 10**MAX_DIGITS)
    _checked(values)


def _checked(value: Any) -> Any:
    """Return a value whose text has a bounded length. Raises TemplateTooCostly: a list that holds another twice, which
    holds another twice, is small until it is written."""
    size, rounds, left = 0, 0, [value]
    while left:
        one = left.pop()
        rounds += 1
        if isinstance(one, str):
            size += len(one)
            _check_size(size)
        elif isinstance(one, Mapping):
            left.extend(one)
            left.extend(one.values())
        elif isinstance(one, (list, tuple)):
            left.extend(one)
        if rounds > MAX_ROUNDS:
            raise TemplateTooCostly(f"it writes a value of more than {MAX_ROUNDS} parts")
    return value


def _bounded_join(parts: Sequence[Any]) -> str:
    """Join texts as the operator ~ does."""
    texts = [str(_checked(part)) for part in parts]
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
    for name in FILTERS_WITH_WIDTHS:
        environment.filters[name] = _guarded(environment.filters[name], _check_widths)
    for name in WRITING_FILTERS:
        environment.filters[name] = _guarded(environment.filters[name], _check_written)
    environment.filters["replace"] = _guarded(environment.filters["replace"], _check_replaced)
    environment.filters["sum"] = _guarded(environment.filters["sum"], _check_summed)
    for name in WITHOUT_BOUNDS:
        environment.filters.pop(name, None)
        environment.globals.pop(name, None)
    compiled = environment.from_string(source)
    compiled.root_render_func.__globals__["str_join"] = _bounded_join
    return compiled


def _guarded(function: Callable[..., Any], check: Callable[[Sequence[Any]], None]) -> Callable[..., Any]:
    @wraps(function)
    def guarded(*arguments: Any, **named: Any) -> Any:
        check((*arguments, *named.values()))
        return function(*arguments, **named)

    return guarded


def _check_widths(arguments: Sequence[Any]) -> None:
    if any(isinstance(value, int) and value > MAX_WIDTH for value in arguments):
        raise TemplateTooCostly(f"it asks for a width of more than {MAX_WIDTH}")


def _check_written(arguments: Sequence[Any]) -> None:
    _checked([one for one in arguments if isinstance(one, (str, list, tuple, Mapping))])


def _check_summed(arguments: Sequence[Any]) -> None:
    if any(isinstance(one, (list, tuple)) for one in arguments[2:]):  # what it starts with, behind context and values
        raise TemplateTooCostly("it adds up what are no numbers")


def _check_replaced(arguments: Sequence[Any]) -> None:
    _, text, old, new = map(str, arguments[:4])  # behind jinja2's own context
    _check_size(len(text) + text.count(old) * len(new))


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise TemplateTooCostly(f"it makes a text of more than {MAX_CHARACTERS} characters")
