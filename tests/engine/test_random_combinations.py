"""Whatever requests ask for, in any combination and company: each output is, to the bit, the one that it is alone."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.detokenizing import Detokenizer
from engine.engine import Engine
from engine.forking import Output, seed_of_output
from engine.linears import Numerics
from engine.model_loader import LoadedModel, load_model
from engine.model_runner import ModelRunner
from engine.request import Request, SamplingParams
from engine.speculation.prompt_lookup import PromptLookup
from tests.engine.fake_speculation import EagerSpeculation
from tests.engine.tiny_configs import SERVED, VOCAB_SIZE
from tests.engine.tiny_models import make_config, random_model

MODES: dict[str, dict[str, Any]] = {
    "in turn": {},
    "ahead": {"async_scheduling": True},
    "with drafts": {},
    "offloading": {"num_host_blocks": 40},
}
ROUNDS = 12
DOCUMENT = list(range(10, 60))  # which prompts share


@dataclass(frozen=True, slots=True)
class Wish:
    """What one prompt's outputs are to be."""

    prompt: list[int]
    params: SamplingParams
    num_outputs: int
    grammar: int | None  # its seed


@dataclass(frozen=True, slots=True)
class FewTokens:
    """A grammar that allows a dozen tokens, others behind each output."""

    seed: int

    def allowed(self, output_token_ids: Sequence[int]) -> NDArray[np.bool_]:
        draw = random.Random(str((self.seed, len(output_token_ids), list(output_token_ids)[-2:])))
        mask = np.zeros(VOCAB_SIZE, dtype=np.bool_)
        mask[draw.sample(range(VOCAB_SIZE), 12)] = True
        return mask


def decode(token_ids: Sequence[int]) -> str:
    return "".join(chr(ord("\N{CJK UNIFIED IDEOGRAPH-4E00}") + token_id) for token_id in token_ids)


def random_wish(draw: random.Random, *, is_plain: bool) -> Wish:
    """`is_plain` leaves out what keeps steps from being planned ahead."""

    def token() -> int:
        return draw.randrange(VOCAB_SIZE)

    prompts = (
        DOCUMENT,
        DOCUMENT[: draw.randint(1, 45)] + [token() for _ in range(draw.randint(0, 6))],
        [token()],
        [5, 6] * draw.randint(1, 20),
    )
    max_tokens = draw.randint(1, 14)
    biases = [
        (),
        tuple((token(), draw.uniform(-50, 50)) for _ in range(3)),
        tuple((token(), draw.uniform(5, 15)) for _ in range(3)),  # its output repeats itself: drafts come true
    ]
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw.choice([0, 0, draw.randint(0, max_tokens)]),
        temperature=draw.choice([0.0, 0.7, 1.5]),
        top_k=draw.choice([0, 0, 3, 20]),
        top_p=draw.choice([1.0, 0.8]),
        min_p=draw.choice([0.0, 0.05]),
        presence_penalty=draw.choice([0.0, 0.0, 1.0, -1.0]),
        frequency_penalty=draw.choice([0.0, 0.0, 0.7]),
        repetition_penalty=draw.choice([1.0, 1.0, 1.3]),
        logit_bias=draw.choice(biases),
        logprobs=draw.choice([None, 0, 3]),
        prompt_logprobs=draw.choice([None, None, 0, 2]),
        seed=draw.randrange(1 << 40),
        stop=draw.choice([(), (), (decode([token()]), decode([token()]))]),
        stop_token_ids=draw.choice([frozenset(), frozenset({token()})]),
        ignore_eos=draw.random() < 0.3,
    )
    return Wish(
        draw.choice(prompts), params, draw.choice([1, 1, 1, 2, 4]), draw.choice([None, None, draw.randrange(9)])
    )


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> LoadedModel:
    folder = tmp_path_factory.mktemp("llama")
    random_model(SERVED["llama"]()).save_pretrained(folder)
    numerics = Numerics(batch_invariant=True)
    return load_model(
        str(folder), dtype=torch.float32, device=torch.device("cpu"), cache_dir=folder / "cache", numerics=numerics
    )


def make_engine(loaded: LoadedModel, *, drafts: bool = False, **changes: Any) -> Engine:
    config = make_config(loaded, **changes)
    runner = ModelRunner(loaded.model, config.num_blocks, config.block_size, None, config.num_host_blocks)
    speculator = EagerSpeculation(PromptLookup(), 4) if drafts else None
    return Engine(config, runner, loaded.identity, Detokenizer(decode), speculator=speculator)


def add(engine: Engine, name: str, wish: Wish) -> tuple[Request, ...]:
    outputs = []
    for index in range(wish.num_outputs):
        params = replace(wish.params, seed=seed_of_output(wish.params.seed, index))
        grammar = None if wish.grammar is None else FewTokens(wish.grammar)
        outputs.append(Output(params if index == 0 else replace(params, prompt_logprobs=None), grammar))
    if len(outputs) > 1:
        return engine.add_group(name, wish.prompt, outputs)
    return (engine.add(name, wish.prompt, outputs[0].params, grammar=outputs[0].grammar),)


def ends(requests: Sequence[Request]) -> list[tuple[object, ...]]:
    return [
        (one.output_token_ids, one.finish_reason, one.stop_at, one.logprobs, one.prompt_logprobs, one.error)
        for one in requests
    ]


@pytest.mark.parametrize("mode", MODES)
def test_outputs_are_those_of_each_prompt_alone(loaded: LoadedModel, mode: str) -> None:
    preemptions = drafted = 0
    for number in range(ROUNDS):
        draw = random.Random(f"{mode} {number}")
        wishes = [random_wish(draw, is_plain=number % 3 == 0) for _ in range(draw.randint(4, 9))]
        expected = []
        for wish in wishes:
            alone = make_engine(loaded, enable_prefix_caching=False)
            requests = add(alone, "alone", wish)
            while alone.has_work:
                alone.step()
            expected.append(ends(requests))
        limits = {"token_budget": draw.choice([8, 16, 64]), "max_num_seqs": draw.choice([3, 8])}
        engine = make_engine(
            loaded, drafts=mode == "with drafts", num_blocks=draw.choice([18, 20, 30]), **limits, **MODES[mode]
        )
        found: list[tuple[Request, ...]] = []
        while len(found) < len(wishes) or engine.has_work:
            if len(found) < len(wishes) and draw.random() < 0.7:
                found.append(add(engine, str(len(found)), wishes[len(found)]))
            engine.step()
            engine.lineup.check_integrity()
        for wish, requests, right in zip(wishes, found, expected, strict=True):
            assert ends(requests) == right, wish
        assert engine.status().blocks_held == 0
        preemptions += engine.status().preemptions
        drafted += sum(one.figures.drafted_tokens for requests in found for one in requests)
    assert preemptions > 0
    assert (drafted > 0) == (mode == "with drafts")
