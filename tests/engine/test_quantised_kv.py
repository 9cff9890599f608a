"""Engines whose KV cache has one byte an element, against transformers' models with keys and values rounded alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from engine.engine import Engine
from engine.forking import Output, seed_of_output
from engine.kv_cache import QUANTISED, UnsupportedCache, choose_kv_dtype
from engine.model_loader import LoadedModel
from engine.request import FinishReason, SamplingParams
from tests.engine.test_architectures import make_prompts
from tests.engine.tiny_configs import SERVED
from tests.engine.tiny_models import generate, load, make_engine, outputs_of, random_model, run

MODELS = ("llama", "qwen3", "mistral-window")  # fused layers, norms of heads, and a window
NUM_TOKENS = 8
NAN_TOKEN = 95


def as_int8(x: Tensor) -> Tensor:
    scales = (x.abs().amax(dim=-1, keepdim=True) / 127).bfloat16().float()
    return (x / scales).round().clamp(-127, 127) * scales


def as_fp8(x: Tensor) -> Tensor:
    scales = (x.abs().amax(dim=-1, keepdim=True) / 448).bfloat16().float()
    return (x / scales).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scales


ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {"int8": as_int8, "fp8": as_fp8}


@dataclass(frozen=True, slots=True)
class Case:
    """A loaded model, a type of its cache, prompts, and what transformers generates from them."""

    loaded: LoadedModel
    kv_dtype: torch.dtype
    prompts: Sequence[Sequence[int]]
    expected: Sequence[Sequence[int]]


def rounding_model(config_name: str, kv_name: str) -> PreTrainedModel:
    """Return a random model whose attention sees rounded keys and values."""
    round_off = ROUNDED[kv_name]

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
        return sdpa_attention_forward(module, query, round_off(key), round_off(value), mask, **options)

    name = f"rounding_{kv_name}"
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)
    model = random_model(SERVED[config_name]())
    model.set_attn_implementation(name)
    return model


@pytest.fixture(scope="module", params=[(model, kv) for model in MODELS for kv in QUANTISED], ids="-".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    config_name, kv_name = request.param
    oracle = rounding_model(config_name, kv_name)
    prompts = make_prompts()
    expected = [generate(oracle, prompt, NUM_TOKENS) for prompt in prompts]
    loaded = load(random_model(SERVED[config_name]()), tmp_path_factory.mktemp(config_name))
    return Case(loaded, QUANTISED[kv_name], prompts, expected)


def test_together_and_from_the_prefix_cache(case: Case) -> None:
    engine = make_engine(case.loaded, case.kv_dtype)
    assert outputs_of(run(engine, case.prompts, NUM_TOKENS)) == case.expected
    again = run(engine, case.prompts, NUM_TOKENS)
    assert outputs_of(again) == case.expected
    assert any(request.figures.prefix_hit_tokens for request in again)


def test_alone_in_small_chunks_and_preempted(case: Case) -> None:
    engine = make_engine(case.loaded, case.kv_dtype, token_budget=8, max_num_seqs=8, num_blocks=28)
    assert outputs_of(run(engine, case.prompts, NUM_TOKENS)) == case.expected
    has_window = None not in case.loaded.model.windows  # what slid out is given back: there is room for all
    assert (engine.status().preemptions == 0) == has_window
    alone = make_engine(case.loaded, case.kv_dtype)
    assert outputs_of(run(alone, case.prompts[-1:], NUM_TOKENS)) == case.expected[-1:]


@pytest.mark.parametrize("kv_name", QUANTISED)
def test_numbers_that_are_not_finite_stay_with_their_request(kv_name: str, tmp_path: Path) -> None:
    model = random_model(SERVED["llama"]())
    with torch.no_grad():
        model.get_parameter("model.embed_tokens.weight")[NAN_TOKEN] = torch.nan
    loaded = load(model, tmp_path)
    prompts = [list(range(3, 3 + length)) for length in (4, 22)]
    expected = outputs_of(run(make_engine(loaded, QUANTISED[kv_name]), prompts, NUM_TOKENS))
    engine = make_engine(loaded, QUANTISED[kv_name], num_blocks=16, token_budget=64)
    *good, bad = run(engine, [*prompts, [NAN_TOKEN] * 20], NUM_TOKENS)
    assert (bad.finish_reason, outputs_of(good)) == (FinishReason.ERROR, expected)
    assert outputs_of(run(engine, prompts, NUM_TOKENS)) == expected  # in the blocks that it had


@pytest.mark.parametrize("kv_name", QUANTISED)
def test_outputs_of_one_prompt_are_what_each_is_alone(kv_name: str, tmp_path: Path) -> None:
    loaded = load(random_model(SERVED["llama"]()), tmp_path)
    prompt = list(range(3, 21))  # its last block is partly filled, and copied before it is written to
    sampled = [
        SamplingParams(max_tokens=NUM_TOKENS, temperature=0.7, ignore_eos=True, seed=seed_of_output(5, index))
        for index in range(3)
    ]
    groups = [sampled, *([params] for params in sampled)]
    together, *alone = (run_group(make_engine(loaded, QUANTISED[kv_name]), prompt, group) for group in groups)
    assert together == [output for (output,) in alone]


def run_group(engine: Engine, prompt: Sequence[int], params: Sequence[SamplingParams]) -> list[list[int]]:
    group = engine.add_group("g", prompt, [Output(each) for each in params])
    while engine.has_work:
        engine.step()
    return outputs_of(group)


def test_a_type_that_a_device_cannot_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choose_kv_dtype("auto", torch.float32, 256, torch.device("cuda")) is torch.float32
    assert choose_kv_dtype("fp8", torch.float32, 256, torch.device("cpu")) is torch.float8_e4m3fn
    with pytest.raises(UnsupportedCache, match=r"fp8 is not possible .* compute capability 8\.0; fp8 needs 8\.9"):
        choose_kv_dtype("fp8", torch.bfloat16, 128, torch.device("cuda"))
