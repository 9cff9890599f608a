"""SmolLM2-135M in bfloat16: a KV cache of one byte an element leaves the likelihood of text as it was."""

from pathlib import Path

import pytest
import torch

from engine.kv_cache import QUANTISED
from engine.model_loader import LoadedModel, load_model
from scripts.benchmarks.nll_bench import mean_nll, text_windows

pytestmark = pytest.mark.model

MOST = 0.01  # of difference; `scripts/bench nll` measures twenty times as much text


@pytest.fixture(scope="module")
def loaded(smollm2_gguf: Path) -> LoadedModel:
    cache_dir = smollm2_gguf.parent / "converted"
    return load_model(str(smollm2_gguf), dtype=torch.bfloat16, device=torch.device("cpu"), cache_dir=cache_dir)


def test_likelihood_of_text(loaded: LoadedModel) -> None:
    windows = text_windows(loaded, num_windows=2, window_tokens=512)
    plain, *quantised = (
        mean_nll(loaded.model, windows, kv_dtype, chunk_tokens=256, decoded_tokens=24)
        for kv_dtype in ("auto", *QUANTISED)
    )
    assert 1.0 < plain < 4.0
    assert [value == pytest.approx(plain, abs=MOST) for value in quantised] == [True, True], (plain, quantised)
