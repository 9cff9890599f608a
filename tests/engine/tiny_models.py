"""Tiny random models of many architectures, saved as the loader finds real ones."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel

from engine.config import EngineConfig
from engine.engine import Engine
from engine.model_loader import LoadedModel, load_model
from engine.model_runner import ModelRunner
from engine.request import Request, SamplingParams

VOCAB_SIZE = 96
CONTEXT = 128
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT_SIZES: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
OLD_SIZES: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2}
LONGROPE: dict[str, Any] = {
    "original_max_position_embeddings": 32,
    "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0, 4.0, 5.0, 6.0]},
}

SERVED: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "llama-tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=16),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=None),
    "granite": lambda: transformers.GraniteConfig(
        **SIZES, attention_multiplier=0.3, logits_scaling=2.0, residual_multiplier=0.5, embedding_multiplier=3.0
    ),
    "olmo2": lambda: transformers.Olmo2Config(**SIZES),
    "phi3": lambda: transformers.Phi3Config(**(SIZES | {"partial_rotary_factor": 0.5})),
    "gemma": lambda: transformers.GemmaConfig(**SIZES, head_dim=8),
    "gpt2": lambda: transformers.GPT2Config(**GPT_SIZES, bos_token_id=1, eos_token_id=2),
    "gptj": lambda: transformers.GPTJConfig(**GPT_SIZES, rotary_dim=4, bos_token_id=1, eos_token_id=2),
    "mistral-window": lambda: transformers.MistralConfig(**SIZES, sliding_window=16),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, head_dim=8, sliding_window=16, query_pre_attn_scalar=8),
    "gemma2-softcap": lambda: transformers.Gemma2Config(
        **SIZES, head_dim=8, layer_types=["full_attention"] * 2, attn_logit_softcapping=2.0
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES, head_dim=8, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **SIZES, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=16
    ),
    "cohere2": lambda: transformers.Cohere2Config(**SIZES, sliding_window=16),
    "gpt-neox": lambda: transformers.GPTNeoXConfig(
        **OLD_SIZES, num_attention_heads=4, intermediate_size=48, max_position_embeddings=CONTEXT
    ),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24
    ),
    "starcoder2": lambda: transformers.Starcoder2Config(**SIZES, sliding_window=16),
    "glm4": lambda: transformers.Glm4Config(**SIZES, head_dim=8),
    "phi": lambda: transformers.PhiConfig(**SIZES),
    "ministral3": lambda: transformers.Ministral3Config(**SIZES, head_dim=8),
    "smollm3": lambda: transformers.SmolLM3Config(**SIZES),
    "opt": lambda: transformers.OPTConfig(
        **OLD_SIZES, ffn_dim=48, num_attention_heads=4, word_embed_proj_dim=32, max_position_embeddings=CONTEXT
    ),
}

# Each would be answered wrongly, and the reason it is refused with.
REFUSED: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "lfm2": (lambda: transformers.Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]), "layers are conv"),
    "bloom": (lambda: transformers.BloomConfig(**OLD_SIZES, n_head=4), "no attribute 'max_position_embeddings'"),
    "bloom-with-context": (
        lambda: transformers.BloomConfig(**(OLD_SIZES | {"n_head": 4, "max_position_embeddings": CONTEXT})),
        "layer 0 does not call the attention function",
    ),
    "falcon": (
        lambda: transformers.FalconConfig(**OLD_SIZES, num_attention_heads=4, bos_token_id=1, eos_token_id=2),
        "layer 0 does not call the attention function",
    ),
    "mamba": (
        lambda: transformers.MambaConfig(**OLD_SIZES, bos_token_id=1, eos_token_id=2),
        "no attribute 'num_attention_heads'",
    ),
    "bert-encoder": (
        lambda: transformers.BertConfig(**OLD_SIZES, num_attention_heads=4, intermediate_size=48),
        "a mask other than the causal one",
    ),
}


def random_model(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Return a model whose weights are large enough for attention to matter and for logits to be well apart."""
    model = cast(PreTrainedModel, AutoModelForCausalLM.from_config(config))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        is_scale = parameter.ndim == 1 and name.endswith("weight")
        nn.init.normal_(parameter, mean=float(is_scale), std=0.3, generator=generator)
    model.eval()
    return model


def load(model: PreTrainedModel, folder: Path) -> LoadedModel:
    """Save a model to a folder and load it as the engine does, in the model's dtype."""
    model.save_pretrained(folder)
    return load_model(str(folder), dtype=model.dtype, device=torch.device("cpu"), cache_dir=folder / "cache")


def generate(model: PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Return transformers' own greedy continuation of one prompt, end-of-sequence ignored."""
    # An end-of-sequence token in the model's own configuration would take effect whatever is passed to `generate`.
    model.generation_config = GenerationConfig(max_new_tokens=num_tokens, do_sample=False, pad_token_id=0)
    ids = torch.tensor([prompt])
    output = cast(GenerationMixin, model).generate(ids, attention_mask=torch.ones_like(ids))
    return cast(list[int], cast(Tensor, output)[0, len(prompt) :].tolist())


def make_engine(loaded: LoadedModel, kv_dtype: torch.dtype | None = None, **changes: int | bool) -> Engine:
    """Return an engine on a loaded model, with blocks of four tokens unless changed."""
    values: dict[str, Any] = {
        "num_blocks": 300,
        "max_model_len": loaded.model.max_model_len,
        "block_size": 4,
        "token_budget": 512,
    }
    config = EngineConfig(**(values | changes))
    runner = ModelRunner(loaded.model, config.num_blocks, config.block_size, kv_dtype)
    return Engine(config, runner, loaded.identity, lambda token_ids: "")


def run(engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Request]:
    """Add all prompts at once and step until they are done, integrity checked at every step."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    requests = [engine.add(str(index), prompt, params) for index, prompt in enumerate(prompts)]
    while engine.has_work:
        engine.step()
        engine.scheduler.check_integrity()
    return requests


def outputs_of(requests: Sequence[Request]) -> list[list[int]]:
    return [request.output_token_ids for request in requests]
