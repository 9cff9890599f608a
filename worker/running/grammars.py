"""Grammars that confine outputs: compiled by llguidance, beside the engine, and followed a token at a time."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, NoReturn

import llguidance.hf
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from engine.grammar import Grammar
from engine.request import RequestError
from worker.errors import InvalidJob
from worker.jobs import PromptJob, num_outputs
from worker.output_format import MAX_GRAMMAR_CHARACTERS, JsonObjectFormat, JsonSchemaFormat
from worker.running.tool_forms import ToolForm, call_grammar

GRAMMAR_FAILED = "grammar_failed"
ANY_OBJECT = {"type": "object"}
WHITESPACE = r"[\x20\x0A]{0,8}"  # unbounded, a small model may never come to the point
MAX_MESSAGE_CHARACTERS = 300
# Of processor time, for all masks of a job: the engine's steps wait for them. Grammars that can be read in many
# ways take 50 ms a token and more, with 49,152 tokens; JSON schemas 0.1, the slowest expressions of use 1.
MASK_SECONDS = 2.0
MASK_SECONDS_A_TOKEN = 0.005  # in addition
MAX_ITEMS_A_MASK = 20_000  # that the parser makes on the way to one: less than 0.2 s


class Grammars:
    """Compiles the grammars of jobs for one model.

    What a grammar may cost is bounded: when it is compiled (less than a second of processor time, by the size that
    `worker.output_format` allows and by llguidance's limits; other threads go on meanwhile), and at its tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int,
        stop_token_ids: Iterable[int],
        tool_form: ToolForm | None = None,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`tokenizer` is transformers' own; its table of tokens is made when the first grammar comes (1 s).

        `tool_form` is how the model calls tools, None where nobody knows. `cpu_clock` returns seconds of processor time
        that the thread which asks has used.
        """
        self._cpu_clock = cpu_clock
        self._tool_form = tool_form
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_token_ids = sorted(stop_token_ids)

    def compile(self, job: PromptJob) -> Sequence[Grammar | None]:
        """Return what confines each of a job's outputs, None where nothing does. Raises InvalidJob naming the field at
        fault. It is compiled once, and what its masks may take is the outputs' together."""
        matcher = self._matcher(job)
        if matcher is None:
            return (None,) * num_outputs(job)
        meter = _Meter(self._cpu_clock)
        return tuple(_Matched(matcher.deep_copy(), meter) for _ in range(num_outputs(job)))

    def _matcher(self, job: PromptJob) -> LLMatcher | None:
        try:
            source = self._source(job)
        except ValueError as error:  # llguidance cannot read numbers of more than 64 bits
            field = "tools" if job.must_call else "response_format"
            raise InvalidJob(field, f"cannot be followed: {_one_line(str(error))}") from None
        if source is None:
            return None
        field, grammar = source
        if not self._stop_token_ids:
            raise InvalidJob(field, "this model has no stop token, so that no grammar could end its output")
        matcher = LLMatcher(self._table, grammar, log_level=0, limits=_limits())
        if matcher.is_error():
            raise InvalidJob(field, f"cannot be followed: {_one_line(matcher.get_error())}")
        return matcher

    def _source(self, job: PromptJob) -> tuple[str, str] | None:
        """Return the field that asks for a grammar, and llguidance's form of it."""
        if not job.must_call:
            return _source(job)
        if self._tool_form is None:
            raise InvalidJob("tool_choice", "this model's chat template has no form of calls that is known")
        size = sum(len(json.dumps(tool.function.parameters)) for tool in job.tools)
        if size > MAX_GRAMMAR_CHARACTERS:
            message = f"have parameters of {size} characters together; at most {MAX_GRAMMAR_CHARACTERS} can be followed"
            raise InvalidJob("tools", message)
        grammar = call_grammar(job, self._tool_form, WHITESPACE, self._tokenizer.get_added_vocab())
        return "tools", LLMatcher.grammar_from_lark(grammar)

    @cached_property
    def _table(self) -> LLTokenizer:
        return llguidance.hf.from_tokenizer(self._tokenizer, self._vocab_size, self._stop_token_ids)


@dataclass(slots=True)
class _Meter:
    """What the masks of a job's outputs took together."""

    cpu_clock: Callable[[], float]  # seconds of processor time
    spent_seconds: float = 0.0
    num_tokens: int = 0  # of the outputs that were shown

    @property
    def is_over(self) -> bool:
        return self.spent_seconds > MASK_SECONDS + MASK_SECONDS_A_TOKEN * self.num_tokens


class _Matched:
    """A matcher that has consumed an output's first tokens."""

    def __init__(self, matcher: LLMatcher, meter: _Meter) -> None:
        self._matcher = matcher
        self._meter = meter
        self._consumed: list[int] = []

    def allowed(self, output_token_ids: Sequence[int]) -> NDArray[np.bool_]:
        meter, num_consumed = self._meter, len(self._consumed)
        begun = meter.cpu_clock()
        mask = self._mask_after(list(output_token_ids))
        meter.spent_seconds += meter.cpu_clock() - begun
        meter.num_tokens += len(self._consumed) - num_consumed
        if meter.is_over:
            bound = f"{MASK_SECONDS:g} s of processor time, and {MASK_SECONDS_A_TOKEN:g} s a token"
            self._fail(f"its job's masks took more than {bound}")
        if self._matcher.is_error():
            self._fail(_one_line(self._matcher.get_error()))
        return np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little").view(np.bool_)

    def _mask_after(self, output: list[int]) -> bytes:
        known = len(self._consumed)
        if output[:known] != self._consumed:  # the step that had these tokens failed, and was run again
            known = next(i for i, pair in enumerate(zip_longest(self._consumed, output)) if pair[0] != pair[1])
            self._matcher.rollback(len(self._consumed) - known)
        self._matcher.consume_tokens(output[known:])
        self._consumed = output
        return self._matcher.compute_bitmask()

    def _fail(self, reason: str) -> NoReturn:
        raise RequestError(GRAMMAR_FAILED, f"after {len(self._consumed)} tokens: {reason}")


def _source(job: PromptJob) -> tuple[str, str] | None:
    """Return the field that asks for a grammar, and llguidance's form of it."""
    if job.regex is not None:
        return "regex", LLMatcher.grammar_from_regex(job.regex)
    if job.grammar is not None:
        return "grammar", LLMatcher.grammar_from_lark(job.grammar)
    match job.response_format:
        case JsonObjectFormat():
            schema: dict[str, Any] = ANY_OBJECT
        case JsonSchemaFormat(json_schema=named):
            schema = named.body
        case _:
            return None
    return "response_format", LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": WHITESPACE})


def _limits() -> LLParserLimits:
    # A verbose error shows the parser's inside.
    return LLParserLimits(verbose_errors=False, step_max_items=MAX_ITEMS_A_MASK)


def _one_line(message: str) -> str:
    line = " ".join(message.replace("<non-verbose/>", "").split())
    return line if len(line) <= MAX_MESSAGE_CHARACTERS else f"{line[: MAX_MESSAGE_CHARACTERS - 3]}..."
