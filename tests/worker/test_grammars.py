"""Grammars over a tokenizer of bytes: outputs follow them, hostile ones are refused in bounded time."""

import json
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, product
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from engine.grammar import Grammar
from engine.request import RequestError
from tests.worker.beside import steps_beside
from worker.errors import InvalidJob
from worker.jobs import parse_job
from worker.running.grammars import MASK_SECONDS, MASK_SECONDS_A_TOKEN, Grammars

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
AMBIGUOUS = 'start: e\ne: e e | "a" | "(" e ")"\n'


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are single bytes, and an end token after them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)} | {"<end>": len(alphabet)}
    backend = FastTokenizer(BPE(vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


@pytest.fixture(scope="module")
def grammars(tokenizer: PreTrainedTokenizerFast) -> Grammars:
    assert isinstance(tokenizer.eos_token_id, int)
    return Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])


def compiled(grammars: Grammars, **fields: Any) -> Grammar:
    (grammar,) = grammars.compile(parse_job({"prompt": "x", **fields}))
    assert grammar is not None
    return grammar


def text_of(tokenizer: PreTrainedTokenizerFast, token_ids: list[int]) -> str:
    return str(tokenizer.decode(token_ids))


def random_output(grammar: Grammar, tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[int]:
    """Yield tokens that a grammar allows until it allows the end, and the end is drawn."""
    draw = random.Random(seed)
    output: list[int] = []
    while True:
        choices = np.flatnonzero(grammar.allowed(output)[: len(tokenizer)]).tolist()
        # Spaces last: an aimless walk would spend itself on them.
        token = draw.choice([c for c in choices if text_of(tokenizer, [c]).strip()] or choices)
        if token == tokenizer.eos_token_id:
            return
        output.append(token)
        yield token


@pytest.mark.parametrize("seed", range(5))
def test_outputs_follow_a_schema(grammars: Grammars, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    named = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    grammar = compiled(grammars, response_format=named)
    person = json.loads(text_of(tokenizer, list(random_output(grammar, tokenizer, seed))))
    assert set(person) == {"name", "age"}
    assert len(person["name"]) <= 5
    assert 0 <= person["age"] <= 99


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        ({"regex": "(yes|no)!?"}, {"yes", "yes!", "no", "no!"}),
        ({"grammar": 'start: "a" tail\ntail: "b" | "c"\n'}, {"ab", "ac"}),
    ],
)
def test_outputs_follow_a_pattern(
    grammars: Grammars, tokenizer: PreTrainedTokenizerFast, fields: dict[str, str], whole: set[str]
) -> None:
    texts = {
        text_of(tokenizer, list(random_output(compiled(grammars, **fields), tokenizer, seed))) for seed in range(30)
    }
    assert texts <= whole
    assert len(texts) > 1


def test_any_json_object_begins_with_a_brace(grammars: Grammars, tokenizer: PreTrainedTokenizerFast) -> None:
    grammar = compiled(grammars, response_format={"type": "json_object"})
    first = np.flatnonzero(grammar.allowed([])[: len(tokenizer)]).tolist()
    assert text_of(tokenizer, first).split() == ["{"]


def test_text_is_not_confined(grammars: Grammars) -> None:
    assert grammars.compile(parse_job({"prompt": "x", "response_format": {"type": "text"}})) == (None,)
    assert grammars.compile(parse_job({"prompt": "x", "n": 2, "best_of": 3})) == (None,) * 3


def test_state_follows_the_output_whatever_is_asked_twice(
    grammars: Grammars, tokenizer: PreTrainedTokenizerFast
) -> None:
    grammar = compiled(grammars, regex="ab")
    (a,), (b,) = tokenizer("a").input_ids, tokenizer("b").input_ids
    for output, expected in (([], a), ([], a), ([a], b), ([a], b), ([a, b], tokenizer.eos_token_id)):
        assert np.flatnonzero(grammar.allowed(output)).tolist() == [expected]


def test_outputs_of_a_job_follow_one_compiled_grammar_each_for_itself(
    grammars: Grammars, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilations: list[str] = []

    def counted(table: LLTokenizer, grammar: str, **options: Any) -> LLMatcher:
        compilations.append(grammar)
        return LLMatcher(table, grammar, **options)

    counted.grammar_from_regex = LLMatcher.grammar_from_regex  # type: ignore[attr-defined]
    monkeypatch.setattr("worker.running.grammars.LLMatcher", counted)
    found = grammars.compile(parse_job({"prompt": "x", "regex": "ab|cd|ef", "n": 2, "best_of": 3}))
    assert len(compilations) == 1
    for grammar, text in zip(found, ("ab", "cd", "ef"), strict=True):
        assert grammar is not None
        grammar.allowed(tokenizer(text[0]).input_ids)
    for grammar, text in zip(found, ("ab", "cd", "ef"), strict=True):
        assert grammar is not None
        assert np.flatnonzero(grammar.allowed(tokenizer(text[0]).input_ids)).tolist() == tokenizer(text[1]).input_ids


def test_an_output_beside_the_grammar_is_an_error(grammars: Grammars, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(RequestError) as caught:
        compiled(grammars, regex="ab").allowed(tokenizer("b").input_ids)
    assert caught.value.code == "grammar_failed"


def schema(body: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": body}}}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"regex": "(("}, "regex"),
        ({"regex": "(?=a)b"}, "regex"),
        ({"regex": "|".join("x" * i + "y" for i in range(250))[:32_768] + "("}, "regex"),
        ({"grammar": "no grammar at all"}, "grammar"),
        ({"grammar": 'start: missing "a"\n'}, "grammar"),
        (schema({"$ref": "#/nowhere"}), "response_format"),
        (schema({"$ref": "https://example.org/schema.json"}), "response_format"),
        (schema({"type": "object", "not": {"type": "string"}}), "response_format"),
        (schema({"type": "no such type"}), "response_format"),
        (schema({"type": "integer", "maximum": 10**40}), "response_format"),
    ],
)
def test_what_cannot_be_followed_names_its_field(grammars: Grammars, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidJob, match=f"^{field}: ") as caught:
        compiled(grammars, **fields)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


# The worst that are known: what any one of them may take is bounded by what the module's constants say.
OVERLAPPING = [
    {"type": "object", "properties": {"a": {"type": "string", "maxLength": i}}, "required": ["a"]}
    for i in range(1, 240)
]
EITHER = [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(2)]} for i in range(16)]
HOSTILE: dict[str, dict[str, Any]] = {
    "nested repetition": {"regex": "(a+)+b"},
    "a million letters": {"regex": "((a{1,100}){1,100}){1,100}"},
    "a thousand options": {"regex": "(a?){1000}a{1000}"},
    "letters of Unicode": {"regex": r"(\p{L}{1,500}\d{1,500}){1,50}"},
    "many states": {"regex": "(a|b)*a(a|b){300}"},
    "many words": {"regex": "|".join("x" * (i % 40) + str(i) for i in range(1000))[:32_000]},
    "an intersection": {"grammar": "start: A\nA: /(a|b)*a(a|b){20}/ & /(a|b)*b(a|b){19}/\n"},
    "two readings": {"grammar": AMBIGUOUS},
    "many readings": {"grammar": 'start: e\ne: e e e | e e | "a" | "b" | ""\n'},
    "readings that grow": {"grammar": 'start: e\ne: e e e e e | "a"\n'},
    "many lexemes": {
        "grammar": f"start: ({' | '.join(f'T{i}' for i in range(300))})*\n"
        + "".join(f"T{i}: /[a-z]{{1,{i + 1}}}x?/\n" for i in range(300))
    },
    "recursion": schema({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}}}}),
    "a long array": schema({"type": "array", "items": {"type": "integer"}, "minItems": 100_000}),
    "many values": schema({"enum": [f"value {number}" for number in range(1800)]}),
    "many properties": schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(900)}}),
    "a large divisor": schema({"type": "integer", "multipleOf": 999_999_937}),
    "objects that overlap": schema({"anyOf": OVERLAPPING}),
    "choices of choices": schema({"allOf": EITHER}),
}
MOST_SECONDS_OF_A_MASK = 0.5  # the one that goes beyond the bound


@pytest.fixture(scope="module")
def wide() -> Grammars:
    """Grammars over a vocabulary of many letters a token, as real ones have: a mask tries them all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    runs = {"a" * length for length in range(2, 129)}
    words = {"".join(letters) for size in (2, 3) for letters in product(alphabet[:40], repeat=size)}
    vocabulary = {token: index for index, token in enumerate([*alphabet, *sorted(runs | words), "<end>"])}
    backend = FastTokenizer(BPE(vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    found = Grammars(tokenizer, len(tokenizer), [vocabulary["<end>"]])
    compiled(found, regex="a")  # makes the table of tokens
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_followed_or_fail_within_bounds(wide: Grammars, name: str) -> None:
    """Of processor time: when it is compiled, and over two hundred tokens together."""
    begun = time.thread_time()
    with suppress(InvalidJob):
        grammar = compiled(wide, **HOSTILE[name])
        assert time.thread_time() - begun < 2.0
        begun, output = time.thread_time(), list[int]()
        with suppress(RequestError):
            while len(output) < 200 and len(choices := np.flatnonzero(grammar.allowed(output))[:-1]):
                output.append(int(choices[0]))
        most = MASK_SECONDS + MASK_SECONDS_A_TOKEN * len(output) + MOST_SECONDS_OF_A_MASK
        assert time.thread_time() - begun < most
        return
    assert time.thread_time() - begun < 2.0


def test_masks_that_take_too_long_end_their_request(tokenizer: PreTrainedTokenizerFast) -> None:
    clock = count(step=0.25)  # a quarter of a second a mask
    assert isinstance(tokenizer.eos_token_id, int)
    found = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id], cpu_clock=lambda: float(next(clock)))
    grammar, (a,) = compiled(found, regex="a*"), tokenizer("a").input_ids
    with pytest.raises(
        RequestError, match=r"^after 8 tokens: its job's masks took more than 2 s of processor time"
    ) as caught:
        list(map(grammar.allowed, ([a] * length for length in range(20))))
    assert caught.value.code == "grammar_failed"


def test_masks_of_all_outputs_of_a_job_share_one_bound(tokenizer: PreTrainedTokenizerFast) -> None:
    clock = count(step=0.25)
    assert isinstance(tokenizer.eos_token_id, int)
    found = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id], cpu_clock=lambda: float(next(clock)))
    outputs, (a,) = found.compile(parse_job({"prompt": "x", "regex": "a*", "n": 4})), tokenizer("a").input_ids
    masks = (grammar.allowed([a] * length) for length, grammar in product(range(20), outputs) if grammar is not None)
    with pytest.raises(RequestError, match=r"^after 2 tokens: its job's masks took more than 2 s of processor time"):
        list(masks)


def test_engine_steps_go_on_while_grammars_are_compiled(wide: Grammars) -> None:
    def compile_all() -> None:
        for fields in HOSTILE.values():
            with suppress(InvalidJob):
                compiled(wide, **fields)

    assert steps_beside(compile_all) > 20


def test_a_model_without_an_end_token_is_told(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InvalidJob, match="no stop token"):
        compiled(Grammars(tokenizer, len(tokenizer), []), regex="a")
