"""The C kernels' products and decoder layer against their oracles."""

from collections.abc import Sequence
from ctypes import c_float
from itertools import chain

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.native.library import (
    ANY_ROWS,
    AttentionHeads,
    LayerStruct,
    NativeKernels,
    NormStruct,
    RoomStruct,
    StepStruct,
    WantedStruct,
)
from kernels.native.planning import plan_step
from kernels.native.tiles import CacheStruct, TiledMatrix, struct_of_cache, tiled_keys, tiled_values
from tests.kernels.cases import LAYOUTS, AttentionCase, Heads, build_case


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
@pytest.mark.parametrize("num_rows", [1, 4, 9, 20, 300])
@pytest.mark.parametrize(("depth", "num_columns"), [(576, 960), (33, 15), (1536, 48)])
@pytest.mark.parametrize("most_integer_rows", [0, 8, ANY_ROWS])
def test_linear_of_int8(
    native: NativeKernels, num_rows: int, depth: int, num_columns: int, most_integer_rows: int
) -> None:
    """Widened, or by integers, which round a row to 1/65534 of its greatest number."""
    weight, bias = torch.randn(num_columns, depth).bfloat16(), torch.randn(num_columns).bfloat16()
    weight[3] = 0
    x = torch.randn(num_rows, depth).bfloat16()
    x[-1, 7] = 400  # beside it, others are small
    scales = (weight.float().abs().amax(dim=1) / 127).clamp(min=1e-30)
    rounded = (weight.float() / scales[:, None]).round().double() * scales[:, None]
    matrix = TiledMatrix.int8(weight, bias, most_integer_rows)
    found = native.linear(x, matrix, matrix.struct(), torch.float32).double()
    expected = torch.nn.functional.linear(x.double(), rounded, bias.double())
    of_rows = x.double().abs().amax(dim=1, keepdim=True) / 65534 * rounded.abs().sum(dim=1)
    assert ((found - expected).abs() <= 1e-4 + 1e-4 * expected.abs() + of_rows).all()
    torch.testing.assert_close(found[:-1], expected[:-1], rtol=1e-3, atol=0.02)


def test_greatest_integers_do_not_overflow(native: NativeKernels) -> None:
    weight, x = torch.full((32, 2048), -3.0).bfloat16(), torch.full((20, 2048), 5.0).bfloat16()
    matrix = TiledMatrix.int8(weight, None, ANY_ROWS)
    assert torch.equal(
        native.linear(x, matrix, matrix.struct(), torch.float32).round(), torch.full((20, 32), -15.0 * 2048)
    )


@pytest.mark.parametrize("most_integer_rows", [0, ANY_ROWS])
def test_rows_of_the_smallest_numbers(native: NativeKernels, most_integer_rows: int) -> None:
    """Their scale would be a number that has lost digits, or none."""
    matrix = TiledMatrix.int8(torch.rand(32, 64).bfloat16() + 0.5, None, most_integer_rows)
    x = torch.full((2, 64), 2.0**-115).bfloat16()
    found, ones = (native.linear(rows, matrix, matrix.struct(), torch.float32) for rows in (x, torch.ones_like(x)))
    torch.testing.assert_close(found, ones * 2.0**-115, rtol=1e-3, atol=0)


@pytest.mark.parametrize("most_integer_rows", [0, ANY_ROWS])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_rows_of_int8_that_are_not_finite(native: NativeKernels, wrong: float, most_integer_rows: int) -> None:
    matrix = TiledMatrix.int8(torch.rand(32, 64).bfloat16() + 0.5, None, most_integer_rows)
    x = torch.randn(20, 64).bfloat16()
    expected = native.linear(x, matrix, matrix.struct(), torch.float32)
    x[3, 5] = wrong
    found = native.linear(x, matrix, matrix.struct(), torch.float32)
    assert not found[3].isfinite().any()
    assert torch.equal(found[4:], expected[4:])
    assert torch.equal(native.linear(x[:0] * 0, matrix, matrix.struct(), torch.float32), expected[:0])
    zeros = torch.zeros(3, 64).bfloat16()
    assert torch.equal(native.linear(zeros, matrix, matrix.struct(), torch.float32), torch.zeros(3, 32))


@pytest.mark.parametrize(("num_rows", "num_columns"), [(3, 32), (40, 96), (600, 960), (1100, 40)])
def test_any_team_shares_a_product(native: NativeKernels, num_rows: int, num_columns: int) -> None:
    """Of few rows a thread has columns of its own, of many it has rows, in more than one block; there may be more
    threads than units."""
    weight, x = torch.randn(num_columns, 1536).bfloat16(), torch.randn(num_rows, 1536).bfloat16()
    matrix, before = TiledMatrix.of(weight, None), torch.get_num_threads()
    found = []
    try:
        for num_threads in (1, 2, 3, 5):
            torch.set_num_threads(num_threads)
            found.append(native.linear(x, matrix, matrix.struct(), torch.float32))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found[0], x.float() @ weight.float().T, rtol=1e-3, atol=1e-2)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("weights", ["bfloat16", "widened", "integers"])
def test_a_row_of_a_product_does_not_depend_on_the_others(native: NativeKernels, weights: str) -> None:
    weight = torch.randn(960, 576).bfloat16()
    matrix = (
        TiledMatrix.of(weight, None)
        if weights == "bfloat16"
        else TiledMatrix.int8(weight, None, 0 if weights == "widened" else ANY_ROWS)
    )
    x = torch.randn(200, 576).bfloat16()
    together = native.linear(x, matrix, matrix.struct(), torch.float32)
    x[7] = torch.nan
    for rows in (slice(0, 1), slice(3, 7), slice(90, 99), slice(100, 131)):
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


HIDDEN, MLP = 160, 352
Weights = tuple[Tensor, Tensor | None]


class Layer:
    """A decoder layer of random weights, for a case's heads."""

    def __init__(self, case: AttentionCase, has_bias: bool) -> None:
        self.case = case
        (self.num_tokens, self.num_heads, self.dim), self.num_kv_heads = case.query.shape, case.key_cache.shape[2]
        self.num_all = self.num_heads + 2 * self.num_kv_heads
        self.norms = torch.randn(2, HIDDEN).bfloat16()
        shapes = (
            (self.num_all * self.dim, HIDDEN),
            (HIDDEN, self.num_heads * self.dim),
            (2 * MLP, HIDDEN),
            (HIDDEN, MLP),
        )
        self.weights = [self._weights(*shape, has_bias=has_bias) for shape in shapes]
        self.matrices = [TiledMatrix.of(*of) for of in self.weights]
        self.matrices[2] = self.matrices[2].interleaved()
        self.heads = AttentionHeads.of(self.num_heads, self.num_kv_heads, self.dim, case.rules)

    @staticmethod
    def _weights(num_columns: int, depth: int, *, has_bias: bool) -> Weights:
        bias = torch.randn(num_columns).bfloat16() if has_bias else None
        return (torch.randn(num_columns, depth) / depth**0.5).bfloat16(), bias

    @property
    def struct(self) -> LayerStruct:
        norms = (NormStruct(norm.data_ptr(), c_float(1e-5)) for norm in self.norms)
        return LayerStruct(*norms, *(matrix.struct() for matrix in self.matrices), self.heads.struct, HIDDEN, MLP)

    def exact(self, hidden: Tensor, rotary: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, and the K and V caches as they are then, all in float32."""
        case, (qkv, output, gate_up, down) = self.case, self.weights
        hidden, (cos, sin) = hidden.float(), rotary.float()

        def linear(x: Tensor, of: Weights) -> Tensor:
            return torch.nn.functional.linear(x, of[0].float(), None if of[1] is None else of[1].float())

        normed = reference.rms_norm(hidden, self.norms[0].float(), 1e-5)
        heads = linear(normed, qkv).view(self.num_tokens, self.num_all, self.dim)
        query, key, value = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
        key_cache, value_cache = case.key_cache.float(), case.value_cache.float()
        reference.store_kv(reference.rotate(key, cos, sin), value, key_cache, value_cache, slots)
        rotated = reference.rotate(query, cos, sin)
        attended = reference.paged_attention(rotated, key_cache, value_cache, case.batch, case.rules)
        hidden = hidden + linear(attended.flatten(1), output)
        normed = reference.rms_norm(hidden, self.norms[1].float(), 1e-5)
        return hidden + linear(reference.silu_mul(linear(normed, gate_up)), down), key_cache, value_cache


class Caches:
    """A tiled cache for each of some layers, all filled as the case's is."""

    def __init__(self, case: AttentionCase, number: int) -> None:
        self.tensors = [(tiled_keys(case.key_cache), tiled_values(case.value_cache)) for _ in range(number)]
        dim = case.key_cache.shape[-1]
        self.structs = (CacheStruct * number)(*(struct_of_cache(*kv, dim) for kv in self.tensors))


def run_layers(
    native: NativeKernels,
    layers: Sequence[Layer],
    cache: CacheStruct,
    hidden: Tensor,
    rotary: Tensor,
    slots: Tensor,
    wanted: Sequence[int] | None = None,
) -> None:
    """Run layers in one call, in rooms without a number in them. `cache` is the first layer's. With rows that are
    `wanted`, the last layer ends the model."""
    first = layers[0]
    rows = torch.tensor(wanted or (), dtype=torch.int64)
    is_wanted = torch.zeros(len(hidden), dtype=torch.bool).index_fill_(0, rows, True)
    kept = torch.full((len(rows) * HIDDEN,), torch.nan, dtype=torch.bfloat16)
    num_tokens, width = first.num_tokens, first.num_heads * first.dim
    plan = plan_step(first.case.batch, first.num_heads // first.num_kv_heads, None, is_invariant=False)
    normed, attended, gated = (native.row_tiles(num_tokens, size).fill_(torch.nan) for size in (HIDDEN, width, MLP))
    qkv = torch.full((num_tokens * first.num_all * first.dim,), torch.nan, dtype=torch.bfloat16)
    parts = torch.full((first.heads.num_parts(plan),), torch.nan)
    native.decoder_layers(
        (LayerStruct * len(layers))(*(layer.struct for layer in layers)),
        cache,
        StepStruct(
            plan.struct,
            *(tensor.data_ptr() for tensor in (slots, rotary[0], rotary[1])),
            WantedStruct(rows.data_ptr(), is_wanted.data_ptr(), len(rows)),
        ),
        RoomStruct(*(tensor.data_ptr() for tensor in (normed, qkv, attended, gated, kept, parts))),
        hidden,
        ends=wanted is not None,
    )


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("layout", ["first-token", "mixed", "shared-by-decodes-and-chunks"])
@pytest.mark.parametrize("heads", LAYER_HEADS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_decoder_layer(native: NativeKernels, layout: str, heads: str, has_bias: bool) -> None:
    """Against the same layer in float32: K and V written, the hidden states changed in place."""
    case = build_case(LAYOUTS[layout], LAYER_HEADS[heads], 16, torch.bfloat16)
    layer, caches = Layer(case, has_bias), Caches(case, 1)
    hidden = torch.randn(layer.num_tokens, HIDDEN).bfloat16()
    rotary, slots = torch.randn(2, layer.num_tokens, layer.dim).bfloat16(), torch.tensor(case.batch.slot_mapping())
    exact, key_cache, value_cache = layer.exact(hidden, rotary, slots)
    run_layers(native, [layer], caches.structs[0], hidden, rotary, slots)
    difference = (hidden.float() - exact).square().mean().sqrt()
    assert difference < 0.02 * exact.std()
    keys, values = caches.tensors[0]
    torch.testing.assert_close(keys, tiled_keys(key_cache.bfloat16()), rtol=0.05, atol=0.1, equal_nan=True)
    torch.testing.assert_close(values, tiled_values(value_cache.bfloat16()), rtol=0.05, atol=0.1, equal_nan=True)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("layout", ["first-token", "mixed"])
def test_layers_in_one_call_are_those_one_by_one(native: NativeKernels, layout: str) -> None:
    """To the bit, each over its own cache."""
    case = build_case(LAYOUTS[layout], LAYER_HEADS["gqa-64"], 16, torch.bfloat16)
    layers, together, apart = [Layer(case, has_bias=True) for _ in range(3)], Caches(case, 3), Caches(case, 3)
    hidden = torch.randn(layers[0].num_tokens, HIDDEN).bfloat16()
    rotary, slots = torch.randn(2, len(hidden), layers[0].dim).bfloat16(), torch.tensor(case.batch.slot_mapping())
    expected = hidden.clone()
    run_layers(native, layers, together.structs[0], hidden, rotary, slots)
    for layer, cache in zip(layers, apart.structs, strict=True):
        run_layers(native, [layer], cache, expected, rotary, slots)
    assert torch.equal(hidden, expected)
    for found, kept in zip(chain(*together.tensors), chain(*apart.tensors), strict=True):
        torch.testing.assert_close(found, kept, rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(together.tensors[0][0].nan_to_num(), together.tensors[1][0].nan_to_num())


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("layout", ["mixed", "shared-by-decodes-and-chunks"])
@pytest.mark.parametrize("which", ["last", "each third"])
def test_the_last_layer_computes_the_rows_that_are_wanted(native: NativeKernels, layout: str, which: str) -> None:
    """To the bit, with the K and V of all rows; other rows are left as the layer before left them."""
    case = build_case(LAYOUTS[layout], LAYER_HEADS["gqa-64"], 16, torch.bfloat16)
    layers = [Layer(case, has_bias=True) for _ in range(2)]
    whole, part, first = Caches(case, 2), Caches(case, 2), Caches(case, 1)
    hidden = torch.randn(layers[0].num_tokens, HIDDEN).bfloat16()
    rotary, slots = torch.randn(2, len(hidden), layers[0].dim).bfloat16(), torch.tensor(case.batch.slot_mapping())
    wanted = [len(hidden) - 1] if which == "last" else list(range(0, len(hidden), 3))
    expected, before_last = hidden.clone(), hidden.clone()
    run_layers(native, layers, whole.structs[0], expected, rotary, slots)
    run_layers(native, layers, part.structs[0], hidden, rotary, slots, wanted)
    run_layers(native, layers[:1], first.structs[0], before_last, rotary, slots)
    before_last[wanted] = expected[wanted]
    assert torch.equal(hidden, before_last)
    for found, kept in zip(chain(*part.tensors), chain(*whole.tensors), strict=True):
        torch.testing.assert_close(found, kept, rtol=0, atol=0, equal_nan=True)
