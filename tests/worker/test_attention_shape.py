"""What layers attend with, as configurations say: the same as the engine sees when each model runs."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from engine.kv_layout import AttentionLayer, KVLayout, groups_of
from engine.model_loader import reader_of
from engine.paged_model import PagedModel
from engine.plan import Deployment, plan_memory
from tests.engine.tiny_configs import (
    ALSO_SERVED,
    LONGROPE,
    MIXED,
    SERVED,
    SHARED_KV,
    SIZES,
    VOCAB_SIZE,
    WIDE_FULL_LAYERS,
    WINDOW,
)
from worker.attention_shape import DEFAULTS, config_of_gguf, context_of, field, layers_of_config, windows_of
from worker.model_shape import shape_from_config

LAYERS: dict[str, Any] = {**SIZES, "num_hidden_layers": 12}
TWELVE: dict[str, Callable[[], PreTrainedConfig]] = {
    "gemma2": lambda: transformers.Gemma2Config(**LAYERS, sliding_window=WINDOW),
    "gemma3": lambda: transformers.Gemma3TextConfig(**LAYERS, sliding_window=WINDOW),
    "gemma3n": lambda: transformers.Gemma3nTextConfig(
        **LAYERS, sliding_window=WINDOW, num_kv_shared_layers=5, hidden_size_per_layer_input=8, laurel_rank=4
    ),
    "gemma4": lambda: transformers.Gemma4TextConfig(
        **LAYERS,
        **WIDE_FULL_LAYERS,
        head_dim=8,
        sliding_window=WINDOW,
        num_kv_shared_layers=4,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB_SIZE,
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **LAYERS, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2
    ),
    "cohere2": lambda: transformers.Cohere2Config(**LAYERS, sliding_window=WINDOW),
    "olmo3": lambda: transformers.Olmo3Config(**LAYERS, sliding_window=WINDOW),
    "mistral": lambda: transformers.MistralConfig(**LAYERS, sliding_window=WINDOW),
    "qwen2": lambda: transformers.Qwen2Config(**LAYERS, sliding_window=WINDOW),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **LAYERS, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=5
    ),
    "longrope": lambda: transformers.Phi3Config(**(SIZES | LONGROPE)),
}
# As the first of them are published: under names that transformers replaces when it saves.
GEMMA4_AS_PUBLISHED = SHARED_KV | WIDE_FULL_LAYERS | {"model_type": "gemma4_text"}
GEMMA4_KEY_IS_VALUE = {
    **MIXED,
    **WIDE_FULL_LAYERS,
    "model_type": "gemma4_text",
    "head_dim": 8,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
}


def observed(config: PreTrainedConfig) -> PagedModel:
    return PagedModel(cast(PreTrainedModel, reader_of(config).from_config(config)))


def hold(written: dict[str, Any], model: PagedModel) -> None:
    """Assert that a plan of a configuration counts blocks as the engine has them for the model."""
    shape = shape_from_config(written, "config.json", {"lm_head.weight": (2, 2)}).shape
    assert shape.layers == model.layers
    assert shape.max_model_len == model.max_model_len
    assert KVLayout(shape.layers, groups_of(shape.layers, model.max_model_len)).groups == model.kv_groups
    for dtype, scale_bytes in ((torch.float32, 0), (torch.int8, 2)):
        size = dtype.itemsize
        plan = plan_memory(
            shape,
            Deployment(
                memory_bytes=2**40, weight_bits=32, kv_element_bytes=size, kv_scale_bytes=scale_bytes, context=50
            ),
        )
        assert plan.block_bytes == model.kv_shape(16, dtype).bytes_per_block
        assert plan.num_groups == len(model.kv_groups)


@pytest.mark.parametrize("name", SERVED | ALSO_SERVED)
def test_plan_has_the_engines_blocks(name: str) -> None:
    config = (SERVED | ALSO_SERVED)[name]()
    hold(json.loads(config.to_json_string()), observed(config))


@pytest.mark.parametrize("name", TWELVE)
@pytest.mark.parametrize("is_old", [False, True])
def test_more_layers(name: str, is_old: bool) -> None:
    """Files of old versions name no types of layers."""
    config = TWELVE[name]()
    written = json.loads(config.to_json_string())
    if is_old:
        written.pop("layer_types", None)
    hold(written, observed(config))


@pytest.mark.parametrize("written", [GEMMA4_AS_PUBLISHED, GEMMA4_KEY_IS_VALUE])
def test_gemma4_as_it_is_published(written: dict[str, Any]) -> None:
    hold(written, observed(AutoConfig.for_model(**written)))


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_what_files_leave_out_is_what_transformers_takes(model_type: str) -> None:
    config = AutoConfig.for_model(model_type)
    config.allow_global_per_layer_attribute_access = True  # Gemma 4's width is that of its sliding layers
    assert {name: getattr(config, name) for name in DEFAULTS[model_type]} == DEFAULTS[model_type]


def test_gemma3_4b_as_it_is_published() -> None:
    """Its file names neither heads nor the size of the vocabulary."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    shape = shape_from_config({"text_config": text}, "config.json", {"a": (2, 2)}).shape
    assert shape.layers[4:6] == (AttentionLayer(8, 4, 256, 1024, 4), AttentionLayer(8, 4, 256, None, 5))
    assert (shape.vocab_size, shape.max_model_len) == (262_208, 131_072)


def test_fields_of_gguf_files() -> None:
    values = {
        "block_count": 7,
        "embedding_length": 640,
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.key_length": 256,
        "attention.sliding_window": 512,
        "context_length": 32_768,
    }

    def config(architecture: str, **changes: Any) -> dict[str, Any]:
        own = {f"{architecture}.{name}": value for name, value in (values | changes).items()}
        return config_of_gguf({"general.architecture": architecture, **own})

    assert windows_of(config("gemma3"), 7) == [512, 512, 512, 512, 512, None, 512]
    assert windows_of(config("phi3"), 7) == [None] * 7
    assert context_of(config("gemma3")) == 32_768
    assert field(config("gpt-oss"), "head_dim") == 256
    (*_, sliding, full, _) = layers_of_config(config("gemma4", **{"attention.key_length": 512}), 7, 4, 640)
    assert (sliding.head_dim, full.head_dim) == (256, 512)


def test_original_context_under_old_names() -> None:
    rope = {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}
    text = {"max_position_embeddings": 131_072, "original_max_position_embeddings": 4096, "rope_scaling": rope}
    assert context_of(text) == 4096
    assert context_of({"n_positions": 2048}) == 2048
    assert context_of({}) is None
