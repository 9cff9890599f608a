"""Speculation with all that a request may ask for, on tiny real models: outputs as without drafts, whoever drafts, and
whether requests are several outputs of a prompt, preempted, or computed in chunks and begun from cached blocks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from engine.detokenizing import Detokenizer
from engine.engine import Engine
from engine.forking import Output, seed_of_output
from engine.model_loader import LoadedModel
from engine.model_runner import ModelRunner
from engine.request import FinishReason, Request, SamplingParams
from engine.speculation.draft_model import DraftModel
from engine.speculation.prompt_lookup import PromptLookup
from engine.speculation.speculator import Drafter
from tests.engine.fake_speculation import EagerSpeculation
from tests.engine.test_speculating_models import loaded, other
from tests.engine.tiny_configs import VOCAB_SIZE
from tests.engine.tiny_models import make_config
from worker.jobs import parse_job
from worker.running.grammars import Grammars

__all__ = ["loaded", "other"]  # fixtures

NUM_TOKENS = 24
DRAFT_TOKENS = 4
PROMPTS = [[3, 4, 5, 6] * 4, list(range(7, 30)), [9, 8, 9, 8, 9], [60]]
SPECIAL = ("<pad>", "<begin>", "<end>")  # the third is the models' end of sequence
LETTERS = [chr(ord("!") + place) for place in range(VOCAB_SIZE - len(SPECIAL))]
LIST = {
    "type": "object",
    "properties": {"seen": {"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 4}},
    "required": ["seen"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Way:
    """What requests ask for: options of their sampling, fields of a job that confine its output, or stop strings."""

    options: Mapping[str, Any] = field(default_factory=dict)
    form: Mapping[str, Any] = field(default_factory=dict)
    stops: bool = False  # at two characters that the output has in its middle


DRAWN = {"temperature": 0.8}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.2}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": LIST}}}
WAYS = {
    "greedy": Way(),
    "seeded": Way(DRAWN),
    "stop": Way(stops=True),
    "seeded_stop": Way(DRAWN, stops=True),
    "min_tokens_stop": Way({"min_tokens": 15}, stops=True),
    "logprobs": Way({"logprobs": 3, **DRAWN}),
    "prompt_logprobs": Way({"prompt_logprobs": 2}),
    "penalties": Way({**PENALTIES, **DRAWN}),
    "regex": Way(form={"regex": "([a-c]{2}[A-C])+[.]"}),
    "seeded_regex": Way(DRAWN, {"regex": "([a-c]{2}[A-C])+[.]"}),
    "schema": Way({"logprobs": 2}, SCHEMA),
    "seeded_schema": Way({**DRAWN, **PENALTIES, "logprobs": 0}, SCHEMA),
    "all": Way({**DRAWN, **PENALTIES, "logprobs": 3, "min_tokens": 12, "logit_bias": ((9, -4.0),)}, stops=True),
}
CIRCUMSTANCES: dict[str, dict[str, Any]] = {
    "several_outputs": {},
    "preempted": {"num_blocks": 16, "max_num_seqs": 4},
    "chunked_then_warm": {"token_budget": 8, "max_num_seqs": 4},
}


def decode(token_ids: Sequence[int]) -> str:
    return "".join(LETTERS[token_id - len(SPECIAL)] for token_id in token_ids if token_id >= len(SPECIAL))


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    """Of a tokenizer whose tokens are single characters."""
    vocabulary = {token: token_id for token_id, token in enumerate((*SPECIAL, *LETTERS))}
    backend = FastTokenizer(BPE(vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    pad, begin, end = SPECIAL
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=pad, bos_token=begin, eos_token=end)
    return Grammars(tokenizer, VOCAB_SIZE, [SPECIAL.index(end)])


@pytest.fixture(params=["ngram", "itself", "other"])
def drafter(request: pytest.FixtureRequest, loaded: LoadedModel, other: LoadedModel) -> Drafter:
    if request.param == "ngram":
        return PromptLookup()
    drafting = loaded if request.param == "itself" else other
    config = make_config(drafting)
    runner = ModelRunner(drafting.model, config.num_blocks, config.block_size)
    return DraftModel(runner, config, drafting.identity.name, VOCAB_SIZE, time.monotonic)


@dataclass(frozen=True, slots=True)
class Runs:
    """Asks one model for the same outputs again and again."""

    loaded: LoadedModel
    grammars: Grammars
    expected: dict[tuple[str, int], list[Request]] = field(default_factory=dict)  # by way and number of outputs

    def engine(self, drafter: Drafter | None, **changes: Any) -> Engine:
        config = make_config(self.loaded, **changes)
        runner = ModelRunner(self.loaded.model, config.num_blocks, config.block_size)
        speculator = None if drafter is None else EagerSpeculation(drafter, DRAFT_TOKENS)
        return Engine(config, runner, self.loaded.identity, Detokenizer(decode), speculator=speculator)

    def without_drafts(self, name: str, num_outputs: int) -> list[Request]:
        """Return what the outputs are to be, from an engine that drafts nothing."""
        key = (name, num_outputs)
        if key not in self.expected:
            way = WAYS[name]
            stops = self.middles(way) if way.stops else []
            self.expected[key] = self.outputs(self.engine(None), way, num_outputs, stops)
        return self.expected[key]

    def middles(self, way: Way) -> list[str]:
        """Return two characters from the middle of each prompt's first output."""
        return [decode(request.output_token_ids[10:12]) for request in self.outputs(self.engine(None), way, 1)]

    def outputs(self, engine: Engine, way: Way, num_outputs: int, stops: Sequence[str] = ()) -> list[Request]:
        """Return the finished requests of all prompts; `stops` has a stop string for each."""
        requests: list[Request] = []
        for index, prompt in enumerate(PROMPTS):
            stop = tuple(stops[index : index + 1])
            seeds = [seed_of_output(index, number) for number in range(num_outputs)]
            grammars = self.grammars.compile(parse_job({"prompt": "x", "n": num_outputs, **way.form}))
            wanted = [
                Output(
                    SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=not way.form, seed=seed, stop=stop, **way.options),
                    grammar,
                )
                for seed, grammar in zip(seeds, grammars, strict=True)
            ]
            requests += engine.add_group(str(index), prompt, wanted)
        while engine.has_work:
            engine.step()
            engine.lineup.check_integrity()
        assert engine.status().blocks_held == 0
        assert not any(request.error for request in requests)
        return requests


@pytest.fixture(scope="module")
def runs(loaded: LoadedModel, grammars: Grammars) -> Runs:
    return Runs(loaded, grammars)


def assert_same(found: Sequence[Request], expected: Sequence[Request]) -> None:
    for one, two in zip(found, expected, strict=True):
        assert one.output_token_ids == two.output_token_ids
        assert (one.finish_reason, one.stop_at) == (two.finish_reason, two.stop_at)
        of_prompts = zip(one.prompt_logprobs, two.prompt_logprobs, strict=True)
        for mine, theirs in (*zip(one.logprobs, two.logprobs, strict=True), *of_prompts):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
@pytest.mark.parametrize("name", WAYS)
def test_outputs_are_those_without_drafts(runs: Runs, drafter: Drafter, name: str, circumstance: str) -> None:
    way, num_outputs = WAYS[name], 3 if circumstance == "several_outputs" else 1
    expected = runs.without_drafts(name, num_outputs)
    stops = [stop for request in expected[::num_outputs] for stop in request.params.stop]
    assert any(request.finish_reason is FinishReason.STOP_STRING for request in expected) == way.stops
    engine = runs.engine(drafter, **CIRCUMSTANCES[circumstance])
    found = runs.outputs(engine, way, num_outputs, stops)
    assert_same(found, expected)
    if circumstance == "chunked_then_warm":
        again = runs.outputs(engine, way, num_outputs, stops)
        assert_same(again, expected)
        assert any(request.figures.prefix_hit_tokens for request in again) == (name != "prompt_logprobs")
    if circumstance == "preempted" and not way.stops:  # which end before there are too many blocks
        assert engine.status().preemptions
    if name == "greedy" or isinstance(drafter, DraftModel):
        assert any(request.figures.drafted_tokens for request in found)
