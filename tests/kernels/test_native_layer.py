"""The C kernels' products and decoder layer against their oracles."""

from ctypes import c_float

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.native.library import AttentionHeads, LayerStruct, NativeKernels, NormStruct, RoomStruct, StepStruct
from kernels.native.planning import plan_step
from kernels.native.tiles import TiledMatrix, row_tiles_size, struct_of_cache, tiled_keys, tiled_values
from tests.kernels.cases import LAYOUTS, Heads, build_case


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 17, 32, 50, 300])
@pytest.mark.parametrize(("depth", "num_columns"), [(576, 960), (33, 15), (64, 17), (1536, 576), (40, 300)])
def test_linear(native: NativeKernels, num_rows: int, depth: int, num_columns: int) -> None:
    weight, bias = torch.randn(num_columns, depth).bfloat16(), torch.randn(num_columns).bfloat16()
    x = torch.randn(2, num_rows, depth).bfloat16()
    for some_bias in (None, bias):
        matrix = TiledMatrix.of(weight, some_bias)
        exact = torch.nn.functional.linear(x.double(), weight.double(), None if some_bias is None else bias.double())
        found = native.linear(x, matrix, matrix.struct(), torch.float32)
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
        rounded = native.linear(x, matrix, matrix.struct(), torch.bfloat16)
        assert torch.equal(rounded, found.bfloat16())


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("num_rows", [1, 20, 300])
@pytest.mark.parametrize(("depth", "num_columns"), [(576, 960), (33, 15)])
def test_linear_of_int8(native: NativeKernels, num_rows: int, depth: int, num_columns: int) -> None:
    weight, bias = torch.randn(num_columns, depth).bfloat16(), torch.randn(num_columns).bfloat16()
    weight[3] = 0
    x = torch.randn(num_rows, depth).bfloat16()
    scales = (weight.float().abs().amax(dim=1) / 127).clamp(min=1e-30)
    rounded = (weight.float() / scales[:, None]).round().double() * scales[:, None]
    matrix = TiledMatrix.int8(weight, bias)
    found = native.linear(x, matrix, matrix.struct(), torch.float32)
    expected = torch.nn.functional.linear(x.double(), rounded, bias.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("two_threads")
def test_a_row_of_a_product_does_not_depend_on_the_others(native: NativeKernels) -> None:
    matrix = TiledMatrix.of(torch.randn(960, 576).bfloat16(), None)
    x = torch.randn(200, 576).bfloat16()
    together = native.linear(x, matrix, matrix.struct(), torch.float32)
    x[7] = torch.nan
    for rows in (slice(0, 1), slice(3, 7), slice(100, 131)):
        assert torch.equal(native.linear(x[rows], matrix, matrix.struct(), torch.float32), together[rows])
    assert torch.equal(native.linear(x, matrix, matrix.struct(), torch.float32)[8:], together[8:])


def test_interleaved_columns() -> None:
    weight, bias = torch.arange(64.0).repeat(32, 1).T.bfloat16(), torch.arange(64.0).bfloat16()
    order = [16 * half + 32 * which + column for half in (0, 1) for which in (0, 1) for column in range(16)]
    expected = TiledMatrix.of(weight[order], bias[order])
    found = TiledMatrix.of(weight, bias).interleaved()
    assert torch.equal(found.tiles, expected.tiles)
    assert found.bias is not None
    assert torch.equal(found.bias, bias[order])


LAYER_HEADS = {"gqa-64": Heads(9, 3, 64), "gqa-32": Heads(4, 2, 32), "mha-128": Heads(2, 2, 128)}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("layout", ["first-token", "mixed", "shared-by-decodes-and-chunks"])
@pytest.mark.parametrize("heads", LAYER_HEADS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_decoder_layer(native: NativeKernels, layout: str, heads: str, has_bias: bool) -> None:
    """Against the same layer in float32: K and V written, the hidden states changed in place."""
    case = build_case(LAYOUTS[layout], LAYER_HEADS[heads], 16, torch.bfloat16)
    hidden_size, mlp_size = 160, 352
    (num_tokens, num_heads, dim), num_kv_heads = case.query.shape, case.key_cache.shape[2]
    num_all = num_heads + 2 * num_kv_heads

    def weights(num_columns: int, depth: int) -> tuple[Tensor, Tensor | None]:
        bias = torch.randn(num_columns).bfloat16() if has_bias else None
        return (torch.randn(num_columns, depth) / depth**0.5).bfloat16(), bias

    norms = torch.randn(2, hidden_size).bfloat16()
    qkv, output = weights(num_all * dim, hidden_size), weights(hidden_size, num_heads * dim)
    gate_up, down = weights(2 * mlp_size, hidden_size), weights(hidden_size, mlp_size)
    hidden, (cos, sin) = torch.randn(num_tokens, hidden_size).bfloat16(), torch.randn(2, num_tokens, dim).bfloat16()
    slots = torch.tensor(case.batch.slot_mapping())

    def linear(x: Tensor, of: tuple[Tensor, Tensor | None]) -> Tensor:
        return torch.nn.functional.linear(x, of[0].float(), None if of[1] is None else of[1].float())

    exact = hidden.float()
    heads_of = linear(reference.rms_norm(exact, norms[0].float(), 1e-5), qkv).view(num_tokens, num_all, dim)
    query, key, value = heads_of.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    key_cache, value_cache = case.key_cache.float(), case.value_cache.float()
    reference.store_kv(reference.rotate(key, cos.float(), sin.float()), value, key_cache, value_cache, slots)
    rotated = reference.rotate(query, cos.float(), sin.float())
    attended = reference.paged_attention(rotated, key_cache, value_cache, case.batch, case.rules)
    exact += linear(attended.flatten(1), output)
    exact += linear(reference.silu_mul(linear(reference.rms_norm(exact, norms[1].float(), 1e-5), gate_up)), down)

    keys, values = tiled_keys(case.key_cache), tiled_values(case.value_cache)
    matrices = [TiledMatrix.of(*of) for of in (qkv, output, gate_up, down)]
    matrices[2] = matrices[2].interleaved()
    attention_heads = AttentionHeads.of(num_heads, num_kv_heads, dim, case.rules)
    plan = plan_step(case.batch, num_heads // num_kv_heads, None, is_invariant=False)
    sizes = (row_tiles_size(num_tokens, width) for width in (hidden_size, num_all * dim, num_heads * dim, mlp_size))
    room = [torch.full((size,), torch.nan, dtype=torch.bfloat16) for size in sizes]
    parts = torch.full((attention_heads.num_parts(plan),), torch.nan)
    native.decoder_layer(
        LayerStruct(
            *(NormStruct(norm.data_ptr(), c_float(1e-5)) for norm in norms),
            *(matrix.struct() for matrix in matrices),
            attention_heads.struct,
            hidden_size,
            mlp_size,
        ),
        StepStruct(plan.struct, slots.data_ptr(), cos.data_ptr(), sin.data_ptr()),
        struct_of_cache(keys, values, dim),
        RoomStruct(*(tensor.data_ptr() for tensor in (*room, parts))),
        hidden,
    )
    difference = (hidden.float() - exact).square().mean().sqrt()
    assert difference < 0.02 * exact.std()
    torch.testing.assert_close(keys, tiled_keys(key_cache.bfloat16()), rtol=0.05, atol=0.1, equal_nan=True)
    torch.testing.assert_close(values, tiled_values(value_cache.bfloat16()), rtol=0.05, atol=0.1, equal_nan=True)
