"""How large an engine is made: blocks for what memory there is, by its model's windows, and a draft model's part."""

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch

from engine.config import EngineConfig
from engine.kv_cache import KVShape
from engine.kv_layout import AttentionLayer, groups_of
from engine.paged_model import PagedModel
from worker.errors import ConfigurationError
from worker.running.sizing import draft_config, engine_config
from worker.settings import resolve_settings

CPU = torch.device("cpu")
BLOCK = 16 * 2 * 2 * 8 * 4  # K and V of 16 tokens in one layer: two heads of eight floats


@dataclass(frozen=True, slots=True)
class Sized:
    """What sizing asks of a model."""

    layer_windows: tuple[int | None, ...]
    max_model_len: int = 4096
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    head_dim: int = 8

    def kv_shape(self, block_size: int, kv_dtype: torch.dtype | None = None) -> KVShape:
        layers = tuple(AttentionLayer(4, 2, 8, window, index) for index, window in enumerate(self.layer_windows))
        return KVShape(layers, groups_of(layers, self.max_model_len), block_size, kv_dtype or self.dtype)

    @property
    def windows(self) -> tuple[int | None, ...]:
        return tuple(group.window for group in self.kv_shape(16).groups)


UNIFORM, MIXED = Sized((None,) * 6), Sized((64, 64, 64, 64, 64, None))


def config_of(model: Sized, draft: Sized | None = None, **changes: Any) -> EngineConfig:
    settings = resolve_settings({"max_num_seqs": 8, "kv_memory_bytes": 1_000_000} | changes, environ={}).settings
    return engine_config(settings, cast(PagedModel, model), cast(PagedModel, draft))


def test_blocks_fill_the_memory() -> None:
    config = config_of(UNIFORM)
    assert (config.windows, config.num_blocks) == ((None,), 1_000_000 // (6 * BLOCK))
    assert config.longest_sequence == config.num_blocks * 16
    mixed = config_of(MIXED, kv_memory_bytes=600_000, kv_offload_bytes=2_000_000)
    assert (mixed.windows, mixed.num_blocks) == ((64, 64, 64, 64, 64, None), 600_000 // BLOCK)
    assert mixed.num_host_blocks == 2_000_000 // BLOCK
    assert mixed.longest_sequence == (mixed.num_blocks - 5 * mixed.most_blocks_by_group[0]) * 16


def test_no_more_than_all_sequences_at_their_longest_take() -> None:
    changes: dict[str, Any] = {"max_num_seqs": 2, "max_model_len": 100, "kv_memory_bytes": 2**30}
    assert config_of(UNIFORM, **changes).num_blocks == 2 * 7
    assert config_of(MIXED, **changes).num_blocks == 2 * 7 * 6


def test_a_draft_model_has_its_part() -> None:
    """Room for as many sequences, whichever of the two keeps windows only."""
    for model in (UNIFORM, MIXED):
        for draft in (Sized((None,)), Sized((64, None)), Sized((64,), max_model_len=512)):
            config = config_of(model, draft)
            own = draft_config(config, draft.max_model_len, draft.windows)
            taken = config.num_blocks * model.kv_shape(16).bytes_per_block
            taken += own.num_blocks * draft.kv_shape(16).bytes_per_block
            assert 0.95 * 1_000_000 < taken <= 1_000_000 + BLOCK * len(draft.layer_windows)
            longest = draft.max_model_len
            held = config.num_blocks / config.most_blocks_of(longest)
            assert own.num_blocks / own.most_blocks_of(longest) == pytest.approx(
                held, abs=1 / own.most_blocks_of(longest)
            )


def test_a_draft_models_cache_has_no_second_tier() -> None:
    config = config_of(UNIFORM, kv_offload_bytes=2_000_000)
    assert config.num_host_blocks > 0
    assert draft_config(config, 4096, (None,)).num_host_blocks == 0


@pytest.mark.parametrize(
    ("draft", "changes", "message"),
    [
        (None, {"kv_memory_bytes": 100}, f"kv_memory_bytes: 100 is less than one block of {6 * BLOCK} bytes"),
        (
            UNIFORM,
            {"kv_memory_bytes": 6 * BLOCK},
            f"kv_memory_bytes: {6 * BLOCK} is less than one block of {12 * BLOCK} bytes",
        ),
        (None, {"kv_offload_bytes": 100}, f"kv_offload_bytes: 100 is less than one block of {6 * BLOCK} bytes"),
        (None, {"token_budget": 16, "max_num_seqs": 30}, "token_budget is 16; it must be at least max_num_seqs"),
        (None, {"max_model_len": 4097}, "max_model_len: 4097 is more than the model's limit of 4096 tokens"),
    ],
)
def test_too_little_or_too_much_is_refused(draft: Sized | None, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        config_of(UNIFORM, draft, **changes)


@pytest.mark.parametrize(
    ("device", "setting", "expected"), [("cpu", True, False), ("cuda", True, True), ("cuda", False, False)]
)
def test_steps_are_planned_ahead_on_a_gpu(device: str, setting: bool, expected: bool) -> None:
    model = replace(UNIFORM, device=torch.device(device))
    assert config_of(model, async_scheduling=setting).async_scheduling is expected
