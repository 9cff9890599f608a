"""Ten thousand random JSON schemas: each output that a grammar lets through is JSON, and is what its schema says.

The judge is a few lines of our own, which share nothing with the library that confines the outputs.
"""

import json
import random
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from engine.grammar import Grammar
from tests.worker.test_grammars import compiled, grammars, schema, text_of, tokenizer
from worker.running.grammars import Grammars

__all__ = ["grammars", "tokenizer"]

NUM_SCHEMAS = 10_000
NUM_PARTS = 10
DEPTH = 3
MOST_TOKENS = 4_000  # far above what these schemas take
PROPERTIES = ("a", "b c", "é", "d", "")
SCALARS = (None, True, False, 0, -7, 1.5, "", "x", 'q"\\', "é✓")
# Characters that an aimless walk would spend itself on.
IDLE = frozenset(" \n")
ENDING = frozenset('"]},')


def random_schema(draw: random.Random, depth: int = DEPTH) -> dict[str, Any]:
    """Return a schema, of containers as long as there is depth."""
    kinds = ["string", "integer", "boolean", "null", "enum", "const"] + ["array", "object", "any"] * 2 * (depth > 0)
    match draw.choice(kinds):
        case "string":
            least = draw.randint(0, 3)
            return {"type": "string", "minLength": least, "maxLength": least + draw.randint(0, 4)}
        case "integer":
            least = draw.randint(-120, 120)
            return {"type": "integer", "minimum": least, "maximum": least + draw.randint(0, 300)}
        case "enum":
            return {"enum": draw.sample(SCALARS, draw.randint(1, 4))}
        case "const":
            return {"const": draw.choice(SCALARS)}
        case "array":
            least = draw.randint(0, 2)
            items = random_schema(draw, depth - 1)
            return {"type": "array", "items": items, "minItems": least, "maxItems": least + draw.randint(0, 2)}
        case "object":
            names = draw.sample(PROPERTIES, draw.randint(0, 3))
            return {
                "type": "object",
                "properties": {name: random_schema(draw, depth - 1) for name in names},
                "required": [name for name in names if draw.random() < 0.5],
                "additionalProperties": False,
            }
        case "any":
            return {"anyOf": [random_schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]}
        case kind:
            return {"type": kind}


def is_same(value: object, other: object) -> bool:
    """Whether two scalars are equal as JSON has it: true is not 1."""
    return value == other and isinstance(value, bool) is isinstance(other, bool)


def follows(value: Any, body: dict[str, Any]) -> bool:
    """Whether a value is what a schema of `random_schema` says."""
    if "anyOf" in body:
        return any(follows(value, one) for one in body["anyOf"])
    if "enum" in body:
        return any(is_same(value, one) for one in body["enum"])
    if "const" in body:
        return is_same(value, body["const"])
    match body["type"]:
        case "string":
            return isinstance(value, str) and body["minLength"] <= len(value) <= body["maxLength"]
        case "integer":
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            return is_integer and body["minimum"] <= value <= body["maximum"]
        case "array":
            is_fitting = isinstance(value, list) and body["minItems"] <= len(value) <= body["maxItems"]
            return is_fitting and all(follows(one, body["items"]) for one in value)
        case "object":
            if not isinstance(value, dict) or not set(body["required"]) <= value.keys() <= body["properties"].keys():
                return False
            return all(follows(one, body["properties"][name]) for name, one in value.items())
        case "boolean":
            return isinstance(value, bool)
        case _:
            return value is None


def random_walk(grammar: Grammar, texts: list[str], end: int, draw: random.Random) -> list[int]:
    """Return tokens drawn among those that are allowed, up to the end token; `texts` are those of all tokens."""
    output: list[int] = []
    while len(output) < MOST_TOKENS:
        allowed = np.flatnonzero(grammar.allowed(output)[: len(texts)]).tolist()
        wanted = [token for token in allowed if texts[token] not in IDLE] or allowed
        ending = [token for token in wanted if token == end or texts[token] in ENDING]
        token = draw.choice(ending if ending and draw.random() < 0.5 else wanted)
        if token == end:
            return output
        output.append(token)
    raise AssertionError(f"no end after {MOST_TOKENS} tokens")


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_outputs_follow_random_schemas(grammars: Grammars, tokenizer: PreTrainedTokenizerFast, part: int) -> None:
    texts = [text_of(tokenizer, [token]) for token in range(len(tokenizer))]
    end = tokenizer.eos_token_id
    assert isinstance(end, int)
    draw = random.Random(part)
    for _ in range(NUM_SCHEMAS // NUM_PARTS):
        body = random_schema(draw)
        text = text_of(tokenizer, random_walk(compiled(grammars, **schema(body)), texts, end, draw))
        assert follows(json.loads(text), body), f"{text} does not follow {json.dumps(body)}"
