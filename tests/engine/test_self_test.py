"""The gate at load: rounding does not close it, and what is wrong far from the beginning does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention_layers import UnsupportedModel
from engine.model_loader import LoadedModel, load_model
from engine.self_test import NUM_TOKENS, STRETCH, eager_logits
from kernels import ops
from tests.engine.tiny_configs import ALSO_SERVED, SERVED, SIZES, VOCAB_SIZE
from tests.engine.tiny_models import random_model

DTYPES = [torch.bfloat16, torch.float16]
LONG: dict[str, Any] = {**SIZES, "max_position_embeddings": 1024}


def load(model: PreTrainedModel, folder: Path) -> LoadedModel:
    model.save_pretrained(folder)
    return load_model(
        str(folder), dtype=model.dtype, device=torch.device("cpu"), cache_dir=folder / "cache", native_kernels=False
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SERVED | ALSO_SERVED)
def test_narrow_types_close_no_gate(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    load(random_model((SERVED | ALSO_SERVED)[name]()).to(dtype), tmp_path)  # type: ignore[arg-type]  # its decorator hides nn.Module.to


@pytest.mark.parametrize(("name", "seed"), [("mixtral", 1), ("jetmoe", 2), ("olmoe", 1), ("ministral3-scaled", 2)])
def test_tokens_that_rounding_leads_astray_close_no_gate(name: str, seed: int, tmp_path: Path) -> None:
    """Each is off by more than 0.4 standard deviations at some token: another expert has won there."""
    load(random_model((SERVED | ALSO_SERVED)[name](), seed).to(torch.bfloat16), tmp_path)  # type: ignore[arg-type]  # its decorator hides nn.Module.to


def window_off_by(tokens: int) -> Callable[..., Any]:
    plan_attention = ops.plan_attention

    def plan(*arguments: Any, window: int | None, **named: Any) -> Any:
        return plan_attention(*arguments, window=None if window is None else window + tokens, **named)

    return plan


def store_first(tokens: int) -> Callable[..., None]:
    """Return a `store_kv` that forgets the tokens behind the first so many, which lie in blocks from the last on."""
    store_kv = ops.store_kv
    seen = 0

    def store(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor, *rest: Any) -> None:
        nonlocal seen
        kept = (slots >= (key_cache.shape[0] * key_cache.shape[1]) - tokens).nonzero().flatten()
        store_kv(key[kept], value[kept], key_cache, value_cache, slots[kept], *rest)
        seen += 1

    return store


@pytest.mark.parametrize(
    ("tokens", "dtype"),
    [(tokens, dtype) for tokens in (16, 48) for dtype in (torch.float32, torch.bfloat16)]
    + [(80, torch.float32), (96, torch.float32)],
)
def test_keys_that_are_lost_in_later_blocks(
    tokens: int, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(SERVED["llama"]()).to(dtype)  # type: ignore[arg-type]  # its decorator hides nn.Module.to
    monkeypatch.setattr(ops, "store_kv", store_first(tokens))
    with pytest.raises(UnsupportedModel, match="its paged logits differ from eager attention by"):
        load(model, tmp_path)


@pytest.mark.parametrize(("window", "off_by"), [(20, -1), (20, 1), (100, -1), (100, 1), (300, -1)])
def test_edges_of_windows(window: int, off_by: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(transformers.MistralConfig(**LONG, sliding_window=window))
    monkeypatch.setattr(ops, "plan_attention", window_off_by(off_by))
    with pytest.raises(UnsupportedModel, match="its paged logits differ from eager attention by"):
        load(model, tmp_path)


@pytest.mark.parametrize(
    ("config", "starts", "stop"),
    [
        (lambda: transformers.LlamaConfig(**LONG), [0, 24, 48, 72, 96], NUM_TOKENS),
        (lambda: transformers.MistralConfig(**LONG, sliding_window=512), [0, 24, 48, 488, 512], 512 + STRETCH),
        (lambda: transformers.MistralConfig(**LONG, sliding_window=601), [0, 24, 48, 72, 96], NUM_TOKENS),
        (lambda: transformers.LlamaConfig(**(SIZES | {"max_position_embeddings": 50})), [0, 24], 48),
        (lambda: transformers.LlamaConfig(**(SIZES | {"max_position_embeddings": 5})), [0], 5),
    ],
)
def test_tokens_that_are_compared(
    config: Callable[[], transformers.PreTrainedConfig], starts: list[int], stop: int
) -> None:
    expected = eager_logits(random_model(config()))
    assert [
        stretch.start // STRETCH * STRETCH if stretch.start < 100 else stretch.start - 2
        for stretch in expected.stretches
    ] == starts
    assert expected.stretches[-1][-1] == stop - 1
    assert expected.logits.shape == (sum(map(len, expected.stretches)), VOCAB_SIZE)
