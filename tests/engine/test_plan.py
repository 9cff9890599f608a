"""Memory plans against numbers computed by hand."""

import dataclasses

import pytest

from engine.config import EngineConfig
from engine.kv_layout import AttentionLayer
from engine.plan import (
    Deployment,
    ModelShape,
    ParameterSplit,
    kv_bytes_per_token,
    like_layers,
    plan_memory,
    weights_bytes,
)

GIB = 2**30

LLAMA_3_8B = ModelShape(
    layers=like_layers(32, num_heads=32, num_kv_heads=8, head_dim=128),
    hidden_size=4096,
    vocab_size=128_256,
    num_parameters=8_030_261_248,
)
LLAMA_3_70B = ModelShape(
    layers=like_layers(80, num_heads=64, num_kv_heads=8, head_dim=128),
    hidden_size=8192,
    vocab_size=128_256,
    num_parameters=70_553_706_496,
)


def test_kv_bytes_of_a_token() -> None:
    # 2 * 32 layers * 8 heads * 128 * 2 bytes = 128 KiB; the 70B model has 2.5 times as many layers.
    assert kv_bytes_per_token(32, 8, 128, 2) == 131_072
    assert kv_bytes_per_token(80, 8, 128, 2) == 327_680
    # SmolLM2-135M in float32: 2 * 30 * 3 * 64 * 4.
    assert kv_bytes_per_token(30, 3, 64, 4) == 46_080


def test_kv_bytes_of_a_token_in_one_byte() -> None:
    # SmolLM2-135M: 2 * 30 * 3 * (64 + 2), 0.516 of the 23,040 bytes in bfloat16.
    assert kv_bytes_per_token(30, 3, 64, 1, 2) == 11_880
    plan = plan_memory(
        LLAMA_3_8B,
        Deployment(memory_bytes=24 * GIB, weight_bits=16, kv_element_bytes=1, kv_scale_bytes=2, context=8192),
    )
    assert plan.block_bytes == 16 * 2 * 32 * 8 * (128 + 2)
    assert plan.capacity_tokens == 140_848  # 1.97 times as many as in bfloat16


def test_weights() -> None:
    assert weights_bytes(8_030_261_248, 16) == 16_060_522_496
    assert weights_bytes(3, 4) == 2  # rounded up to a whole byte


def test_8b_in_24_gib() -> None:
    deployment = Deployment(memory_bytes=24 * GIB, weight_bits=16, kv_element_bytes=2, context=8192)
    plan = plan_memory(LLAMA_3_8B, deployment)
    # 25,769,803,776 - 16,060,522,496 - (2048 * 4096 * 16 * 2 + 128 * 128256 * 4 = 268,435,456 + 65,667,072)
    assert plan.weights_fit
    assert plan.activation_bytes == 334_102_528
    assert plan.kv_cache_bytes == 9_375_178_752
    assert plan.block_bytes == 2_097_152
    assert plan.num_blocks == 4470  # 9,375,178,752 / 2,097,152 = 4470.43
    assert plan.capacity_tokens == 71_520
    full, quarter = plan.fits
    assert (full.tokens, full.kv_bytes, full.paged, full.reserved) == (8192, GIB, 8, 8)
    # 128 blocks each: 34 sequences a quarter full, where reserving the whole context holds 8.
    assert (quarter.tokens, quarter.kv_bytes, quarter.paged, quarter.reserved) == (2048, GIB // 4, 34, 8)


def test_grouped_query_attention_is_counted() -> None:
    deployment = Deployment(memory_bytes=200 * GIB, weight_bits=16, kv_element_bytes=2, context=4096)
    plan = plan_memory(LLAMA_3_70B, deployment)
    assert plan.kv_bytes_per_token == 327_680
    assert plan.kv_bytes_per_token_without_gqa == 8 * 327_680


def test_70b_at_4_bit_does_not_fit_in_24_gib() -> None:
    deployment = Deployment(memory_bytes=24 * GIB, weight_bits=4, kv_element_bytes=2, context=4096)
    plan = plan_memory(LLAMA_3_70B, deployment)
    assert plan.weights_bytes == 35_276_853_248
    assert not plan.weights_fit
    assert plan.num_blocks == 0
    assert [fit.paged for fit in plan.fits] == [0, 0]


def test_last_block_counts_whole() -> None:
    shape = dataclasses.replace(LLAMA_3_8B, num_parameters=1, hidden_size=1, vocab_size=1)
    deployment = Deployment(
        memory_bytes=10 * 2_097_152 + 1 + 2048 * 32 + 128 * 4, weight_bits=8, kv_element_bytes=2, context=17
    )
    full, quarter = plan_memory(shape, deployment).fits
    assert full.paged == 5  # ten blocks, two for each sequence of 17 tokens
    assert full.reserved == 9  # 160 slots, 17 reserved for each
    assert quarter.paged == 10


@pytest.mark.parametrize("field", ["memory_bytes", "weight_bits", "kv_element_bytes", "context", "block_size"])
def test_deployment_refuses_zero(field: str) -> None:
    deployment = Deployment(memory_bytes=1, weight_bits=1, kv_element_bytes=1, context=1)
    with pytest.raises(ValueError, match=f"{field} is 0; it must be at least 1"):
        dataclasses.replace(deployment, **{field: 0})


def test_shape_refuses_uneven_heads() -> None:
    with pytest.raises(ValueError, match="num_heads is 32; it must be a multiple of num_kv_heads"):
        dataclasses.replace(LLAMA_3_8B, layers=like_layers(32, num_heads=32, num_kv_heads=5, head_dim=128))


SMOLLM2 = ModelShape(
    layers=like_layers(30, num_heads=9, num_kv_heads=3, head_dim=64),
    hidden_size=576,
    vocab_size=49_152,
    num_parameters=134_515_008,
    split=ParameterSplit(linear=106_168_320 + 28_311_552, other=28_311_552 + 61 * 576),
)
INT8 = Deployment(memory_bytes=GIB, weight_bits=16, linear_bits=8, kv_element_bytes=2, context=8192)


def test_linear_layers_in_int8() -> None:
    # One byte each, an output of 576 columns 12 more; embeddings and norms two bytes. What torch holds was counted as
    # 193,629,568 bytes.
    assert plan_memory(SMOLLM2, INT8).weights_bytes == 134_479_872 + 134_479_872 // 576 * 12 + 2 * 28_346_688
    unknown = dataclasses.replace(SMOLLM2, split=None)
    assert plan_memory(unknown, INT8).weights_bytes == 106_203_456 + 106_203_456 // 576 * 12 + 2 * 28_311_552
    with pytest.raises(ValueError, match="linear_bits is 4; it must be 8"):
        dataclasses.replace(INT8, linear_bits=4)


def test_a_draft_model_has_weights_and_blocks_beside_the_model() -> None:
    deployment = Deployment(memory_bytes=24 * GIB, weight_bits=16, kv_element_bytes=1, kv_scale_bytes=2, context=8192)
    alone, both = plan_memory(LLAMA_3_8B, deployment), plan_memory(LLAMA_3_8B, deployment, SMOLLM2)
    assert both.draft_weights_bytes == 2 * 134_515_008
    assert both.weights_bytes == alone.weights_bytes + both.draft_weights_bytes
    assert both.kv_bytes_per_token == alone.kv_bytes_per_token
    assert both.draft_kv_bytes_per_token == 23_040  # its cache is not quantised
    assert both.block_bytes == alone.block_bytes + 16 * 23_040
    assert both.num_blocks == (alone.kv_cache_bytes - both.draft_weights_bytes) // both.block_bytes
    assert both.fits[0].kv_bytes == 8192 // 16 * both.block_bytes


GEMMA_3_270M = ModelShape(
    layers=tuple(AttentionLayer(4, 1, 256, None if index % 6 == 5 else 512, index) for index in range(18)),
    hidden_size=640,
    vocab_size=262_144,
    num_parameters=268_098_176,
)


def test_layers_with_a_window_keep_the_window() -> None:
    deployment = Deployment(memory_bytes=2 * GIB, weight_bits=16, kv_element_bytes=2, context=32_768)
    plan = plan_memory(GEMMA_3_270M, deployment)
    assert plan.num_groups == 6
    assert plan.kv_bytes_per_token == 18_432  # 2 * 18 * 256 * 2
    assert plan.block_bytes == 49_152  # three layers' of 16 tokens
    full, quarter = plan.fits
    # 2,048 blocks of the full layers', and five times those of 512 tokens anywhere in blocks of 16
    assert full.kv_bytes == (2048 + 5 * 33) * 49_152
    assert quarter.kv_bytes == (512 + 5 * 33) * 49_152
    assert full.paged == plan.kv_cache_bytes // full.kv_bytes == 13
    assert full.reserved == plan.kv_cache_bytes // (18_432 * 32_768) == 2
    assert plan.capacity_tokens == plan.num_blocks // 6 * 16
    undivided = plan_memory(dataclasses.replace(GEMMA_3_270M, layers=like_layers(18, 4, 1, 256)), deployment)
    assert undivided.fits[0].kv_bytes == 32_768 * 18_432  # 5.6 times as much


def test_layers_that_differ_are_counted_each() -> None:
    """Gemma 4's defaults: full layers are twice as wide as the others, and here the last two share K and V."""
    layers = [AttentionLayer(8, 4, 512 if index % 6 == 5 else 256, 512, index) for index in range(30)]
    layers = [dataclasses.replace(layer, window=None if layer.head_dim == 512 else 512) for layer in layers]
    shape = dataclasses.replace(GEMMA_3_270M, layers=tuple(layers), max_model_len=32_768)
    deployment = Deployment(memory_bytes=8 * GIB, weight_bits=16, kv_element_bytes=2, context=32_768)
    plan = plan_memory(shape, deployment)
    assert plan.num_groups == 4  # five full layers, and ten sliding ones three times, one of them half empty
    assert plan.kv_bytes_per_token == 2 * 2 * 4 * (25 * 256 + 5 * 512)
    assert plan.block_bytes == 16 * 2 * 2 * 4 * 5 * 512
    assert plan.fits[0].kv_bytes == (2048 + 3 * 33) * plan.block_bytes
    shared = (*layers[:28], dataclasses.replace(layers[28], source=27), dataclasses.replace(layers[29], source=23))
    assert plan_memory(dataclasses.replace(shape, layers=shared), deployment).kv_bytes_per_token == 2 * 2 * 4 * (
        24 * 256 + 4 * 512
    )


def test_groups_are_those_of_the_models_own_limit() -> None:
    """However short the sequences are that a plan is asked for."""
    shape = dataclasses.replace(GEMMA_3_270M, max_model_len=32_768)
    deployment = Deployment(memory_bytes=2 * GIB, weight_bits=16, kv_element_bytes=2, context=500)
    assert plan_memory(shape, deployment).num_groups == 6
    assert plan_memory(GEMMA_3_270M, deployment).num_groups == 1


def test_plan_and_engine_hold_as_many_blocks() -> None:
    """In steps of one token; the engine has one block more a group, for a copy."""
    config = EngineConfig(
        num_blocks=1, max_model_len=32_768, max_num_seqs=1, token_budget=1, windows=(*[512] * 5, None)
    )
    deployment = Deployment(memory_bytes=2 * GIB, weight_bits=16, kv_element_bytes=2, context=32_768)
    held = plan_memory(GEMMA_3_270M, deployment).fits[0].kv_bytes // 49_152
    assert config.most_blocks_of(32_768) == held + 5
