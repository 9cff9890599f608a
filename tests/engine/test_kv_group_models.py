"""Models that mix full and sliding layers: as transformers generates, however far beyond the window, in less memory."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from transformers import PreTrainedConfig

from engine.forking import Output, seed_of_output
from engine.kv_groups import together
from engine.model_loader import LoadedModel
from engine.model_runner import ModelRunner
from engine.paged_model import PagedModel
from engine.request import SamplingParams
from engine.speculation.draft_model import DraftModel
from engine.speculation.prompt_lookup import PromptLookup
from kernels.native.library import NativeKernels
from tests.engine.fake_speculation import EagerSpeculation
from tests.engine.tiny_configs import LOCAL_MOE, MIXED, SERVED, SHARED_KV, VOCAB_SIZE, WIDE_FULL_LAYERS, WINDOW
from tests.engine.tiny_models import generate, load, make_config, make_engine, outputs_of, random_model, run

NUM_TOKENS = 20
FIVE_TO_ONE: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "sliding_window": WINDOW,
    "head_dim": 8,
}
THREE_TO_ONE: dict[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 2,
    "num_kv_shared_layers": 1,
}
CONFIGS: dict[str, tuple[Callable[[], PreTrainedConfig], tuple[int | None, ...]]] = {
    "gemma3": (lambda: transformers.Gemma3TextConfig(**(MIXED | FIVE_TO_ONE)), (*[WINDOW] * 5, None)),
    "gpt-oss": (lambda: transformers.GptOssConfig(**LOCAL_MOE, head_dim=8, sliding_window=WINDOW), (WINDOW, None)),
    "gemma3n": (
        lambda: transformers.Gemma3nTextConfig(**SHARED_KV, laurel_rank=4, activation_sparsity_pattern=[0.0] * 4),
        (WINDOW, None),
    ),
    # Full layers twice as wide as the others: a full layer's block is two sliding layers', where these are their own.
    "gemma4": (SERVED["gemma4"], (WINDOW, None)),
    "gemma4-three-to-one": (
        lambda: transformers.Gemma4TextConfig(**(SHARED_KV | WIDE_FULL_LAYERS | THREE_TO_ONE)),
        (WINDOW, WINDOW, None),
    ),
}


@dataclass(frozen=True, slots=True)
class Mixed:
    """A loaded model, prompts, and what transformers generates from them."""

    loaded: LoadedModel
    prompts: Sequence[Sequence[int]]
    expected: Sequence[Sequence[int]]


def make_prompts() -> list[list[int]]:
    """Return prompts of up to six windows. Two begin with the same four."""
    shared = [(7 * position * position) % 90 + 3 for position in range(4 * WINDOW)]
    return [
        [*shared, *range(3, 36)],
        [*shared, *range(50, 70)],
        [(11 * position) % 83 + 5 for position in range(50)],
        [9, 8, 7],
    ]


@pytest.fixture(scope="module", params=CONFIGS)
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    make, windows = CONFIGS[request.param]
    oracle, prompts = random_model(make()), make_prompts()
    loaded = load(random_model(make()), tmp_path_factory.mktemp(request.param))
    assert loaded.model.windows == windows
    return Mixed(loaded, prompts, [generate(oracle, prompt, NUM_TOKENS) for prompt in prompts])


@pytest.mark.parametrize("token_budget", [7, 64, 512])
def test_as_transformers_generates(mixed: Mixed, token_budget: int) -> None:
    engine = make_engine(mixed.loaded, token_budget=token_budget, max_num_seqs=4)
    assert outputs_of(run(engine, mixed.prompts, NUM_TOKENS)) == mixed.expected
    again = run(engine, mixed.prompts, NUM_TOKENS)
    assert outputs_of(again) == mixed.expected
    assert [request.figures.prefix_hit_tokens for request in again] == [96, 80, 48, 0]


def test_memory_is_a_windows_and_the_full_layers(mixed: Mixed) -> None:
    """Of one sequence seven windows long; blocks of four tokens, steps of eight."""
    model = mixed.loaded.model
    engine = make_engine(mixed.loaded, token_budget=8, max_num_seqs=4)
    (request,) = run(engine, mixed.prompts[:1], NUM_TOKENS)
    full, sliding = model.windows.count(None), len(model.windows) - model.windows.count(None)
    num_tokens = request.num_tokens - 1  # the last is never computed
    assert num_tokens > 7 * WINDOW
    assert request.figures.kv_blocks_peak <= full * -(-num_tokens // 4) + sliding * (WINDOW + 8 - 2) // 4 + 2 * sliding
    own = [model.layers[index] for index in {layer.source for layer in model.layers}]
    a_token = sum(2 * layer.num_kv_heads * layer.head_dim * 4 for layer in own)  # K and V in float32
    undivided = -(-num_tokens // 4) * 4 * a_token
    taken = request.figures.kv_blocks_peak * model.kv_shape(4).bytes_per_block
    leaves_room = model.kv_shape(4).layout.is_mixed  # sliding layers, in blocks that are as large as those of full ones
    assert taken < undivided * (0.4 if sliding == 5 else 0.85 if leaves_room else 0.65)


def test_preempted_requests_go_on(mixed: Mixed) -> None:
    """Short ones are admitted first, and grow; how many blocks are too few for that differs."""
    sizes: dict[str, Any] = {"token_budget": 8, "max_num_seqs": 4}
    longest = max(map(len, mixed.prompts)) + NUM_TOKENS
    least = make_config(mixed.loaded, **sizes).most_blocks_of(longest)
    preemptions = 0
    for num_blocks in (least, least + 6, least + 9):
        engine = make_engine(mixed.loaded, num_blocks=num_blocks, **sizes)
        for _ in range(2):
            assert outputs_of(run(engine, mixed.prompts[::-1], NUM_TOKENS)) == mixed.expected[::-1]
        preemptions += engine.status().preemptions
    assert preemptions > 0


def test_blocks_come_back_from_the_host(mixed: Mixed) -> None:
    sizes: dict[str, Any] = {"token_budget": 16, "max_num_seqs": 4}
    longest = max(map(len, mixed.prompts)) + NUM_TOKENS
    num_blocks = make_config(mixed.loaded, **sizes).most_blocks_of(longest)
    engine = make_engine(mixed.loaded, num_blocks=num_blocks, num_host_blocks=2000, **sizes)
    engine.scheduler.cache.offload.policy.note_copies = lambda time: None  # type: ignore[method-assign]  # copy whatever it takes
    run(engine, mixed.prompts, NUM_TOKENS)
    again = run(engine, mixed.prompts, NUM_TOKENS)
    assert outputs_of(again) == mixed.expected
    assert engine.status().offload.blocks_back > 0
    assert again[0].figures.prefix_hit_tokens == 96


def test_forks_are_what_their_seeds_give_alone(mixed: Mixed) -> None:
    prompt = mixed.prompts[0][: 4 * WINDOW + 2]
    params = [
        SamplingParams(max_tokens=3 * WINDOW, temperature=0.7, ignore_eos=True, seed=seed_of_output(5, index))
        for index in range(3)
    ]
    engine = make_engine(mixed.loaded, token_budget=32, max_num_seqs=4)
    group = engine.add_group("g", prompt, [Output(each) for each in params])
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()
    for request, each in zip(group, params, strict=True):
        alone_engine = make_engine(mixed.loaded)
        alone = alone_engine.add("alone", prompt, each)
        while alone_engine.has_work:
            alone_engine.step()
        assert request.output_token_ids == alone.output_token_ids
    assert len({tuple(request.output_token_ids) for request in group}) == 3


@pytest.mark.parametrize("drafter", ["prompt lookup", "itself"])
def test_drafts_change_no_token(mixed: Mixed, drafter: str) -> None:
    config = make_config(mixed.loaded, token_budget=32, max_num_seqs=4)
    runner = ModelRunner(mixed.loaded.model, config.num_blocks, config.block_size)
    model = DraftModel(runner, config, mixed.loaded.identity.name, VOCAB_SIZE, time.monotonic)
    speculator = EagerSpeculation(PromptLookup() if drafter == "prompt lookup" else model, 5)
    engine = make_engine(mixed.loaded, None, speculator, token_budget=64, max_num_seqs=4)
    requests = run(engine, mixed.prompts, NUM_TOKENS)
    model.check_integrity()
    assert outputs_of(requests) == mixed.expected
    drafted, accepted = (
        sum(getattr(request.figures, name) for request in requests) for name in ("drafted_tokens", "accepted_tokens")
    )
    assert drafted > 0
    assert drafter == "prompt lookup" or accepted == drafted


@pytest.mark.parametrize("kv_dtype", [None, torch.int8], ids=str)
def test_groups_change_no_bit_of_bfloat16(tmp_path: Path, kv_dtype: torch.dtype | None) -> None:
    """On the C kernels, where the machine has them: blocks of 16 tokens, heads of 64."""
    config = transformers.Gemma3TextConfig(**(MIXED | FIVE_TO_ONE | {"head_dim": 64}))
    loaded = load(random_model(config).to(torch.bfloat16), tmp_path)  # type: ignore[arg-type]  # its decorator hides nn.Module.to
    model, prompts = loaded.model, make_prompts()
    found = []
    for groups in (model.kv_groups, together(dict(enumerate(layer.window for layer in model.layers)))):
        model.kv_groups = groups
        engine = make_engine(loaded, kv_dtype, block_size=16, token_budget=24, max_num_seqs=4)
        found.append([outputs_of(run(engine, prompts, NUM_TOKENS)) for _ in range(2)])
        assert len(engine.config.windows) == len(groups)
    assert found[0] == found[1]


@pytest.mark.parametrize("kv_dtype", [None, torch.int8, torch.float8_e4m3fn], ids=str)
def test_blocks_of_mixed_shapes_change_no_token(tmp_path: Path, kv_dtype: torch.dtype | None) -> None:
    """Of Gemma 4, quantised too: with groups as without, where every layer has memory of its own."""
    loaded, prompts = load(random_model(CONFIGS["gemma4-three-to-one"][0]()), tmp_path), make_prompts()
    model, found = loaded.model, []
    own = {layer.source: layer.window for layer in reversed(model.layers)}
    for groups in (model.kv_groups, together(own)):
        model.kv_groups = groups
        assert model.kv_shape(4).layout.is_mixed == (len(groups) > 1)
        engine = make_engine(loaded, kv_dtype, token_budget=24, max_num_seqs=4)
        found.append([outputs_of(run(engine, prompts, NUM_TOKENS)) for _ in range(2)])
    assert found[0] == found[1]


def test_layers_of_other_widths_keep_all_on_the_c_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tiles have KV heads first: a block of wider layers lies elsewhere."""
    monkeypatch.setattr(PagedModel, "_is_native", lambda self: True)
    model = random_model(SERVED["gemma4"]())
    assert PagedModel(model, cast(NativeKernels, object())).windows == (None,)
