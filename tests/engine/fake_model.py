"""A model without weights: the next token is a hash of the tokens that are seen, and a text is letters."""

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.detokenizing import Detokenizer
from engine.engine import ModelIdentity
from engine.grammar import Grammar
from engine.request import FinishReason, RequestError, SamplingParams

VOCAB_SIZE = 32
EOS = 0
NAN_TOKEN = VOCAB_SIZE - 1  # a prompt may hold it; it is never generated. Its KV, and all KV after it, is not finite
TOKEN_TEXTS = tuple("abcdefgh"[token % 8] + ("xyz"[token % 3] if token % 2 else "") for token in range(VOCAB_SIZE))

MODEL = ModelIdentity(name="fake", vocab_size=VOCAB_SIZE, stop_token_ids=frozenset({EOS}))


def stored(token: int, group: int) -> int:
    """Return what a KV group stores of a token: no other group's is mistaken for it."""
    return token + group * VOCAB_SIZE


def visible(context: Sequence[int], window: int | None) -> Sequence[int]:
    """Return what the newest token sees."""
    return context if window is None else context[-window:]


def next_token(context: Sequence[int], seed: int = 0) -> int:
    """Return the fake model's continuation of what its groups see."""
    return zlib.crc32(array("q", context).tobytes(), seed) % NAN_TOKEN


def seen(token_ids: Sequence[int], windows: Sequence[int | None]) -> list[int]:
    """Return what all groups see of known tokens."""
    return [stored(token, group) for group, window in enumerate(windows) for token in visible(token_ids, window)]


def continuation(token_ids: Sequence[int], seed: int = 0, windows: Sequence[int | None] = (None,)) -> int:
    """Return the fake model's continuation of known tokens."""
    return next_token(seen(token_ids, windows), seed)


def text_of(token_ids: Sequence[int]) -> str:
    """Return a text of one or two letters a token."""
    return "".join(TOKEN_TEXTS[token] for token in token_ids)


detokenize = Detokenizer(text_of)


def choice(context: Sequence[int], params: SamplingParams, output: Sequence[int], grammar: Grammar | None) -> int:
    """Return the token that a request chooses by what its groups see and, where it asks for that, by its output. Raises
    what its grammar raises."""
    token = next_token(context, params.seed)
    if params.has_penalties:
        token = (token + zlib.crc32(array("q", output).tobytes())) % NAN_TOKEN
    if grammar is None:
        return token
    allowed = grammar.allowed(output)
    return min(range(NAN_TOKEN), key=lambda one: (not allowed[one], (one - token) % NAN_TOKEN))


@dataclass(frozen=True, slots=True)
class FakeGrammar:
    """Forbids a third of the tokens, which third depends on all before; as real ones do, it fails behind its end."""

    ends: frozenset[int] = frozenset()
    fails_at: int | None = None  # with so many tokens known

    def allowed(self, output_token_ids: Sequence[int]) -> NDArray[np.bool_]:
        if not self.ends.isdisjoint(output_token_ids) or len(output_token_ids) == self.fails_at:
            raise RequestError("grammar_failed", "as it was told")
        return np.array([(token + sum(output_token_ids)) % 3 != 0 for token in range(VOCAB_SIZE)])


def generate_alone(
    prompt: Sequence[int],
    params: SamplingParams,
    windows: Sequence[int | None] = (None,),
    grammar: Grammar | None = None,
) -> tuple[list[int], FinishReason]:
    """Return what a request must produce, computed without blocks, batches or the code under test."""
    if NAN_TOKEN in prompt:
        return [], FinishReason.ERROR
    stop_ids = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    output: list[int] = []
    while True:
        old_length = len(detokenize(output))
        try:
            output.append(choice(seen([*prompt, *output], windows), params, output, grammar))
        except RequestError:
            return output, FinishReason.ERROR
        text = detokenize(output)
        if len(output) >= params.min_tokens:
            if output[-1] in stop_ids:
                return output, FinishReason.STOP
            if any(text.endswith(stop, 0, end) for stop in params.stop for end in range(old_length + 1, len(text) + 1)):
                return output, FinishReason.STOP_STRING
        if len(output) == params.max_tokens:
            return output, FinishReason.LENGTH
