"""Gemma 3 270M in float32, a second real architecture: contexts beyond its sliding window, against `generate`."""

import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine
from engine.model_loader import LoadedModel, load_model
from engine.model_runner import ModelRunner
from tests.engine.tiny_models import run

pytestmark = pytest.mark.model

ROOT = Path(__file__).resolve().parents[2]
NUM_TOKENS = 6
WINDOW = 512


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    command = [sys.executable, str(ROOT / "scripts" / "fetch-model"), "gemma3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    return load_model(str(path), dtype=torch.float32, device=torch.device("cpu"), cache_dir=path.parent / "converted")


def make_prompts(tokenizer: Any) -> list[list[int]]:
    """Return a long text continued in two places and a short one, each token id list with its beginning of text."""
    text = tokenizer(topics["exceptions"] + topics["with"]).input_ids
    return [text[:560], text[:590], tokenizer("The capital of France is").input_ids]


def test_greedy_equals_generate_beyond_the_window(loaded: LoadedModel) -> None:
    windows = [layer.window for layer in loaded.model.layers]
    assert windows == [None if index % 6 == 5 else WINDOW for index in range(18)]
    prompts = make_prompts(AutoTokenizer.from_pretrained(loaded.folder))
    assert sorted(map(len, prompts))[1:] == [560, 590]
    model: Any = AutoModelForCausalLM.from_pretrained(loaded.folder, dtype=torch.float32)
    options = {"max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS, "do_sample": False}
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        expected.append(output[0, len(prompt) :].tolist())
    assert len(set(map(tuple, expected))) == len(prompts)

    assert loaded.model.windows == (*[WINDOW] * 5, None)
    config = EngineConfig(
        num_blocks=600, max_model_len=1024, max_num_seqs=8, token_budget=256, windows=loaded.model.windows
    )
    runner = ModelRunner(loaded.model, config.num_blocks, config.block_size)
    engine = Engine(config, runner, loaded.identity, Detokenizer(lambda _ids: ""))
    cold = run(engine, prompts, NUM_TOKENS)
    assert [request.output_token_ids for request in cold] == expected
    warm = run(engine, prompts, NUM_TOKENS)
    assert [request.output_token_ids for request in warm] == expected
    assert [request.figures.prefix_hit_tokens for request in warm[:2]] == [544, 576]
