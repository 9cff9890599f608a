"""Speculation on tiny real models: every token as without it, whoever drafts and however tokens are chosen."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.model_loader import LoadedModel
from engine.model_runner import ModelRunner
from engine.request import Request, SamplingParams
from engine.speculation.draft_model import DraftModel
from engine.speculation.prompt_lookup import PromptLookup
from engine.speculation.speculator import Speculator
from engine.speculation.verifying import sample_drafts
from engine.step_plan import Drafts, ScheduledRequest
from tests.engine.fake_speculation import EagerSpeculation
from tests.engine.fakes import make_request
from tests.engine.tiny_configs import SERVED, VOCAB_SIZE
from tests.engine.tiny_models import load, make_config, make_engine, random_model

NUM_TOKENS = 24
DRAFT_TOKENS = 4
PROMPTS = [[3, 4, 5, 6] * 4, list(range(7, 30)), [9, 8, 9, 8, 9], [60]]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.8},
    "cut": {"temperature": 1.0, "top_k": 7, "top_p": 0.9},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.2, "temperature": 0.5},
    "bias": {"logit_bias": ((5, 4.0), (9, -100.0))},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": frozenset(range(40, 80))},
    "logprobs": {"logprobs": 3, "stop_token_ids": frozenset({2, 11, 33})},
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(random_model(SERVED["llama"]()), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(random_model(SERVED["qwen2"](), seed=1), tmp_path_factory.mktemp("other"))


def draft_model(drafting: LoadedModel, config: EngineConfig) -> DraftModel:
    runner = ModelRunner(drafting.model, config.num_blocks, config.block_size)
    return DraftModel(runner, config, drafting.identity.name, VOCAB_SIZE, time.monotonic)


def generate(
    loaded: LoadedModel, speculator: Speculator | None, options: dict[str, Any], **changes: int | bool
) -> list[Request]:
    engine = make_engine(loaded, None, speculator, **changes)
    requests = [
        engine.add(str(i), prompt, SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=i, **options))
        for i, prompt in enumerate(PROMPTS)
    ]
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()
        if isinstance(speculator, EagerSpeculation) and isinstance(speculator.drafter, DraftModel):
            speculator.drafter.check_integrity()
    assert engine.status().blocks_held == 0
    assert not any(request.error for request in requests)
    return requests


def assert_same(found: Sequence[Request], expected: Sequence[Request]) -> None:
    for one, two in zip(found, expected, strict=True):
        assert one.output_token_ids == two.output_token_ids
        assert one.finish_reason == two.finish_reason
        assert len(one.logprobs) == len(two.logprobs)
        for mine, theirs in zip(one.logprobs, two.logprobs, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


def accepted_share(requests: Sequence[Request]) -> float:
    drafted = sum(request.figures.drafted_tokens for request in requests)
    return sum(request.figures.accepted_tokens for request in requests) / drafted


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_blocks", [300, 22])
def test_prompt_lookup_changes_no_token(loaded: LoadedModel, way: str, num_blocks: int) -> None:
    plain = generate(loaded, None, WAYS[way])
    speculator = EagerSpeculation(PromptLookup(), DRAFT_TOKENS)
    found = generate(loaded, speculator, WAYS[way], num_blocks=num_blocks, max_num_seqs=4)
    assert_same(found, plain)
    if "temperature" not in WAYS[way]:  # else a random model hardly repeats itself
        assert sum(request.figures.drafted_tokens for request in found) > 0


@pytest.mark.parametrize("way", WAYS)
def test_model_that_drafts_for_itself_is_always_right(loaded: LoadedModel, way: str) -> None:
    config = make_config(loaded, token_budget=16, max_num_seqs=4)
    speculator = EagerSpeculation(draft_model(loaded, config), DRAFT_TOKENS)
    found = generate(loaded, speculator, WAYS[way])
    assert_same(found, generate(loaded, None, WAYS[way]))
    if way in {"greedy", "drawn", "cut", "bias"}:
        assert accepted_share(found) == 1.0


@pytest.mark.parametrize("way", ["greedy", "drawn"])
@pytest.mark.parametrize("num_blocks", [300, 10])
def test_model_that_is_mostly_wrong_changes_no_token(
    loaded: LoadedModel, other: LoadedModel, way: str, num_blocks: int
) -> None:
    """The smaller cache of the draft model holds only some of the requests."""
    speculator = EagerSpeculation(draft_model(other, make_config(other, num_blocks=num_blocks)), DRAFT_TOKENS)
    found = generate(loaded, speculator, WAYS[way])
    assert_same(found, generate(loaded, None, WAYS[way]))
    assert 0.0 <= accepted_share(found) < 0.5


class ShortSight(EagerSpeculation):
    """Has a single token of each draft checked, as where a step has no room for more."""

    def propose(self, decoding: Sequence[Request], room: int) -> Drafts:
        return {request_id: draft[:1] for request_id, draft in super().propose(decoding, room).items()}


def test_draft_model_whose_drafts_are_cut_goes_on(loaded: LoadedModel) -> None:
    """All that the request knows is computed then, and more: the logits of its last token are wanted once more."""
    found = generate(loaded, ShortSight(draft_model(loaded, make_config(loaded)), DRAFT_TOKENS), {})
    assert_same(found, generate(loaded, None, {}))
    assert accepted_share(found) == 1.0


def prompts_of(number: int) -> dict[str, Request]:
    """Return requests of 32 prompt tokens, all different but for their first eight."""
    return {
        str(index): make_request(
            [*range(8), *(5 + (7 * index + place) % 40 for place in range(24))], request_id=str(index)
        )
        for index in range(number)
    }


def behind(drafter: DraftModel, requests: dict[str, Request]) -> list[int]:
    offers = [drafter.offer(request, 4) for request in requests.values()]
    return [offer.num_behind for offer in offers if offer is not None]


def test_draft_model_catches_up_a_step_at_a_time(loaded: LoadedModel) -> None:
    requests = prompts_of(3)
    drafter = draft_model(loaded, make_config(loaded, token_budget=20, max_num_seqs=4))
    assert behind(drafter, requests) == [32, 32, 32]
    assert drafter.catch_up(list(requests.values())) == 20
    assert behind(drafter, requests) == [12, 24, 24]  # what they share is computed
    wanted = {"1": 3}  # while the first, whose blocks are not full yet, is left where it is
    drafts = drafter.draft(wanted, requests)
    assert behind(drafter, requests) == [12, 1, 24]
    assert drafter.catch_up([requests["0"], requests["2"]]) == 20
    assert behind(drafter, requests) == [1, 1, 15]
    assert drafter.catch_up([requests["0"], requests["2"]]) == 14
    assert drafter.catch_up(list(requests.values())) == 0
    drafts = {**drafts, **drafter.draft({"0": 3, "2": 3}, requests)}
    drafter.check_integrity()
    alone = draft_model(loaded, make_config(loaded))
    assert drafts == alone.draft(dict.fromkeys(requests, 3), requests)


def test_draft_model_drafts_again_for_the_same_tokens(loaded: LoadedModel) -> None:
    """As after a step that failed: the last token's logits are wanted once more, and its block has a name by then."""
    requests = prompts_of(2)
    drafter = draft_model(loaded, make_config(loaded))
    drafts = [drafter.draft(dict.fromkeys(requests, 3), requests) for _ in range(2)]
    assert drafts[0] == drafts[1]
    drafter.check_integrity()


def test_draft_model_without_room_drafts_nothing(loaded: LoadedModel) -> None:
    requests = prompts_of(2)
    drafter = draft_model(loaded, make_config(loaded, num_blocks=10))
    assert drafter.catch_up(list(requests.values())) == 31
    assert drafter.draft(dict.fromkeys(requests, 3), requests).keys() == {"0"}
    drafter.retain({"1"})
    assert drafter.draft({"1": 3}, requests).keys() == {"1"}


def test_draft_model_scores_no_prompt(loaded: LoadedModel) -> None:
    """It would take its head over each prompt, for numbers that nobody asks it for."""
    drafter = draft_model(loaded, make_config(loaded))
    requests = generate(loaded, EagerSpeculation(drafter, DRAFT_TOKENS), {"prompt_logprobs": 1})
    assert all(len(request.prompt_logprobs) == request.num_prompt_tokens - 1 for request in requests)
    followers = [follower.request for follower in drafter._followers.values()]
    assert followers
    assert not any(follower.prompt_logprobs for follower in followers)


def test_draft_model_that_is_not_finite_drafts_no_more(loaded: LoadedModel, tmp_path: Path) -> None:
    model = random_model(SERVED["llama"]())
    broken = load(model, tmp_path)
    drafter = draft_model(broken, make_config(broken))
    with torch.no_grad():
        broken.model.model.get_parameter("model.embed_tokens.weight")[3] = torch.nan
    found = generate(loaded, EagerSpeculation(drafter, DRAFT_TOKENS), {})
    assert_same(found, generate(loaded, None, {}))
    assert found[0].figures.drafted_tokens == 0  # its prompt has the token
    assert found[1].figures.drafted_tokens > 0


class EvenTokens:
    """A grammar that allows what is even, and notes what it was shown."""

    def __init__(self) -> None:
        self.shown: list[list[int]] = []

    def allowed(self, output_token_ids: Sequence[int]) -> NDArray[np.bool_]:
        self.shown.append(list(output_token_ids))
        allowed = np.zeros(VOCAB_SIZE, dtype=np.bool_)
        allowed[::2] = True
        return allowed


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_grammar_sees_real_tokens_only(loaded: LoadedModel, temperature: float) -> None:
    outputs = []
    for speculator in (None, EagerSpeculation(PromptLookup(), DRAFT_TOKENS)):
        grammar, engine = EvenTokens(), make_engine(loaded, speculator=speculator)
        params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=temperature)
        request = engine.add("r", PROMPTS[0], params, grammar=grammar)
        while engine.has_work:
            engine.step()
        assert all(token % 2 == 0 for token in request.output_token_ids)
        assert all(shown == request.output_token_ids[: len(shown)] for shown in grammar.shown)
        outputs.append(request.output_token_ids)
    assert outputs[0] == outputs[1]


def test_distribution_is_the_models() -> None:
    """Chi-square of what is drawn behind a draft, in the first and second place, over a vocabulary of six."""
    number, vocab_size, draft = 6000, 6, (2, 4)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, vocab_size, generator=generator)
    requests = [make_request([1], seed=seed, temperature=1.0, ignore_eos=True) for seed in range(number)]
    shares = [ScheduledRequest(request, 0, 3, draft) for request in requests]
    results = [result for result in sample_drafts(rows.repeat(number, 1), shares) if isinstance(result, tuple)]
    assert len(results) == number
    assert all(request.token_ids == [1] for request in requests)
    for place in range(2):
        drawn = [result[place] for result in results if len(result) > place]
        expected = rows[place].double().softmax(dim=-1).numpy() * len(drawn)
        counts = np.bincount(drawn, minlength=vocab_size)
        assert ((counts - expected) ** 2 / expected).sum() < 20.5  # 0.999 of chi-square with 5 degrees of freedom
    assert {len(result) for result in results} == {1, 2, 3}
