"""Draft models for a model that has no smaller one of its vocabulary at hand: its own first layers."""

import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig
from engine.model_loader import LoadedModel, load_model
from engine.model_runner import ModelRunner
from engine.speculation.draft_model import DraftModel


def first_layers(loaded: LoadedModel, num_layers: int) -> LoadedModel:
    """Return the model that ends after the first `num_layers` layers of another: its embeddings, these layers, its last
    norm and its head, in its dtype. Nothing was trained to end there, so that it drafts worse than a small model does.
    """
    dtype = loaded.model.dtype
    with tempfile.TemporaryDirectory() as folder:
        cut = AutoModelForCausalLM.from_pretrained(loaded.folder, dtype=dtype, num_hidden_layers=num_layers)
        cut.save_pretrained(folder)
        return load_model(folder, dtype=dtype, device=torch.device("cpu"), cache_dir=Path(folder) / "cache")


def drafter_of(drafting: LoadedModel, config: EngineConfig, vocab_size: int) -> DraftModel:
    """Return what drafts by a model with a cache of its own, as `config` says; `vocab_size` is the engine's model's."""
    runner = ModelRunner(drafting.model, config.num_blocks, config.block_size)
    return DraftModel(runner, config, drafting.identity.name, vocab_size, time.monotonic)
