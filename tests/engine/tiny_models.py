"""Tiny random models, saved as the loader finds real ones, and engines on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine
from engine.model_loader import LoadedModel, load_model, reader_of
from engine.model_runner import ModelRunner
from engine.request import Request, SamplingParams
from engine.speculation.speculator import Speculator


def random_model(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Return a model whose weights are large enough for attention to matter and for logits to be well apart."""
    model = cast(PreTrainedModel, reader_of(config).from_config(config))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        is_scale = parameter.ndim == 1 and name.endswith("weight")
        nn.init.normal_(parameter, mean=float(is_scale), std=0.3, generator=generator)
    model.eval()
    return model


def load(model: PreTrainedModel, folder: Path, max_model_len: int | None = None) -> LoadedModel:
    """Save a model to a folder and load it as the engine does, in the model's dtype."""
    model.save_pretrained(folder)
    cpu, cache_dir = torch.device("cpu"), folder / "cache"
    return load_model(str(folder), dtype=model.dtype, device=cpu, cache_dir=cache_dir, max_model_len=max_model_len)


def generate(model: PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Return transformers' own greedy continuation of one prompt, end-of-sequence ignored."""
    # An end-of-sequence token in the model's own configuration would take effect whatever is passed to `generate`.
    model.generation_config = GenerationConfig(max_new_tokens=num_tokens, do_sample=False, pad_token_id=0)
    ids = torch.tensor([prompt])
    output = cast(GenerationMixin, model).generate(ids, attention_mask=torch.ones_like(ids))
    return cast(list[int], cast(Tensor, output)[0, len(prompt) :].tolist())


def make_engine(
    loaded: LoadedModel,
    kv_dtype: torch.dtype | None = None,
    speculator: Speculator | None = None,
    **changes: Any,
) -> Engine:
    """Return an engine on a loaded model, with blocks of four tokens unless changed."""
    config = make_config(loaded, **changes)
    runner = ModelRunner(loaded.model, config.num_blocks, config.block_size, kv_dtype, config.num_host_blocks)
    return Engine(config, runner, loaded.identity, Detokenizer(lambda token_ids: ""), speculator=speculator)


def make_config(loaded: LoadedModel, **changes: Any) -> EngineConfig:
    values: dict[str, Any] = {
        "num_blocks": 300 * len(loaded.model.windows),
        "max_model_len": loaded.model.max_model_len,
        "block_size": 4,
        "windows": loaded.model.windows,
        "token_budget": 512,
    }
    return EngineConfig(**(values | changes))


def run(engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Request]:
    """Add all prompts at once and step until they are done, integrity checked at every step."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    requests = [engine.add(str(index), prompt, params) for index, prompt in enumerate(prompts)]
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()
    return requests


def outputs_of(requests: Sequence[Request]) -> list[list[int]]:
    return [request.output_token_ids for request in requests]
