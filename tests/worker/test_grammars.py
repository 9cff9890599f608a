"""Grammars over a tokenizer of bytes: outputs follow them, hostile ones are refused in bounded time."""

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from engine.grammar import Grammar
from engine.request import RequestError
from worker.errors import InvalidJob
from worker.jobs import parse_job
from worker.running.grammars import Grammars

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
    grammar = grammars.compile(parse_job({"prompt": "x", **fields}))
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
    assert grammars.compile(parse_job({"prompt": "x", "response_format": {"type": "text"}})) is None
    assert grammars.compile(parse_job({"prompt": "x"})) is None


def test_state_follows_the_output_whatever_is_asked_twice(
    grammars: Grammars, tokenizer: PreTrainedTokenizerFast
) -> None:
    grammar = compiled(grammars, regex="ab")
    (a,), (b,) = tokenizer("a").input_ids, tokenizer("b").input_ids
    for output, expected in (([], a), ([], a), ([a], b), ([a], b), ([a, b], tokenizer.eos_token_id)):
        assert np.flatnonzero(grammar.allowed(output)).tolist() == [expected]


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


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "(a+)+b"},
        {"regex": "((a{1,100}){1,100}){1,100}"},
        {"regex": r"(\p{L}{1,500}\d{1,500}){1,50}"},
        {"grammar": AMBIGUOUS},
        schema({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}}}}),
        schema({"type": "array", "items": {"type": "integer"}, "minItems": 100_000}),
        schema({"enum": [f"value {number}" for number in range(1800)]}),
    ],
    ids=str,
)
def test_hostile_grammars_are_followed_or_fail_alone(
    grammars: Grammars, tokenizer: PreTrainedTokenizerFast, fields: dict[str, Any]
) -> None:
    """Each is compiled and goes forty tokens, or ends with its own error; a hang would end the whole suite."""
    output = random_output(compiled(grammars, **fields), tokenizer, 1)
    with suppress(RequestError):
        assert list(islice(output, 40))


def test_a_model_without_an_end_token_is_told(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InvalidJob, match="no stop token"):
        compiled(Grammars(tokenizer, len(tokenizer), []), regex="a")
