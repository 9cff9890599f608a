"""The C kernels against their oracles, where this machine can compile and run them: with the processor's matrix tiles,
where it has them, and with vectors."""

from collections.abc import Iterator
from ctypes import c_float
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.kv_scales import GREATEST, KVScales, quantise
from kernels.native.attending import NativePlan
from kernels.native.building import NativeBuild
from kernels.native.library import AttentionHeads, LayerStruct, NativeKernels, NormStruct, RoomStruct, StepStruct
from kernels.native.planning import SPLIT_KEYS, is_served, plan_step
from kernels.native.tiles import TiledMatrix, row_tiles_size, struct_of_cache, tiled_keys, tiled_values
from kernels.native.toolchain import is_supported
from kernels.paged_batch import PagedBatch
from kernels.score_rules import ScoreRules
from tests.kernels.cases import LAYOUTS, AttentionCase, Heads, SequenceLayout, build_case

COMPILE_SECONDS = 300.0
ROUNDING = 2.0**-8  # of a bfloat16, relative; two that are rounded to different sides are twice as far apart
HEADS = {
    "mha-32": Heads(4, 4, 32),
    "mha-96": Heads(2, 2, 96),
    "gqa-64": Heads(9, 3, 64),
    "gqa-5-64": Heads(10, 2, 64),
    "mqa-128": Heads(32, 1, 128),
    "mha-256": Heads(2, 2, 256),
}
LAYOUTS_HERE = LAYOUTS | {
    "drafts": (
        SequenceLayout(70, 5),
        SequenceLayout(0, 3),
        *(SequenceLayout(130 + n, 1 + n, (("document", 128),)) for n in range(4)),
        SequenceLayout(15, 8),
    ),
    "long chunk": (SequenceLayout(75, 300), SequenceLayout(64, 1)),
}


@pytest.fixture(scope="module", params=["tiles", "vectors"])
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeKernels:
    if not is_supported():
        pytest.skip("this processor has no AVX-512 bfloat16")
    folder = tmp_path_factory.mktemp("native")
    kernels = NativeBuild(folder, uses_tiles=request.param == "tiles").wait(COMPILE_SECONDS)
    if kernels is None:
        pytest.skip("this machine has no C compiler for it")
    return kernels


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def attend(native: NativeKernels, case: AttentionCase, *, is_invariant: bool = False) -> Tensor:
    """Attend with queries that are a view of wider rows."""
    num_tokens, num_heads, head_dim = case.query.shape
    num_kv_heads = case.key_cache.shape[2]
    assert is_served(num_heads, num_kv_heads, head_dim)
    keys, values = tiled_keys(case.key_cache), tiled_values(case.value_cache)
    wide = torch.full((num_tokens, num_heads + 2, head_dim), torch.nan, dtype=torch.bfloat16)
    wide[:, :num_heads] = case.query
    per_head = num_heads // num_kv_heads
    plan = plan_step(case.batch, per_head, case.rules.window, is_invariant=is_invariant)
    heads = AttentionHeads.of(num_heads, num_kv_heads, head_dim, case.rules)
    return native.attention(wide[:, :num_heads], struct_of_cache(keys, values, head_dim), plan, heads)


def assert_equals_reference(native: NativeKernels, case: AttentionCase) -> None:
    expected = reference.paged_attention(case.query, case.key_cache, case.value_cache, case.batch, case.rules)
    found = attend(native, case)
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=1e-2)


@pytest.mark.parametrize(("heads", "block_size"), [*((heads, 16) for heads in HEADS), ("gqa-64", 32), ("gqa-64", 48)])
@pytest.mark.parametrize("layout", LAYOUTS_HERE)
def test_attention_equals_reference(native: NativeKernels, layout: str, heads: str, block_size: int) -> None:
    assert_equals_reference(native, build_case(LAYOUTS_HERE[layout], HEADS[heads], block_size, torch.bfloat16))


RULES = {
    "window-1": ScoreRules(0.17, window=1),
    "window-20": ScoreRules(0.17, window=20),
    "window-100": ScoreRules(0.17, window=100),
    "softcap": ScoreRules(0.5, softcap=3.0),
    "sinks": ScoreRules(0.17, sinks=torch.linspace(-2.0, 3.0, 9)),
    "slopes": ScoreRules(0.17, slopes=torch.logspace(-0.5, -8, 9, base=2.0)),
    "all": ScoreRules(
        0.5,
        window=33,
        softcap=5.0,
        sinks=torch.linspace(3.0, -2.0, 9),
        slopes=torch.logspace(-1, -9, 9, base=2.0),
    ),
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("layout", ["decodes", "chunks", "window", "shared", "nested", "drafts", "long chunk"])
def test_rules_equal_reference(native: NativeKernels, layout: str, rules: str) -> None:
    case = build_case(LAYOUTS_HERE[layout], HEADS["gqa-64"], 16, torch.bfloat16)
    assert_equals_reference(native, replace(case, rules=RULES[rules]))


LONG = (
    *(SequenceLayout(SPLIT_KEYS + 480 + n, 1, (("document", SPLIT_KEYS + 320),)) for n in (1, 90)),
    SequenceLayout(2 * SPLIT_KEYS + 5, 1),
    SequenceLayout(SPLIT_KEYS - 20, 50),
)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("window", [None, SPLIT_KEYS + 100])
def test_long_sequences_are_split(native: NativeKernels, window: int | None) -> None:
    case = build_case(LONG, HEADS["gqa-64"], 16, torch.bfloat16)
    assert_equals_reference(native, replace(case, rules=ScoreRules(0.17, window=window)))


def test_groups_that_are_larger_than_a_task(native: NativeKernels) -> None:
    layouts = tuple(SequenceLayout(130 + n, 1, (("document", 128),)) for n in range(50))
    assert_equals_reference(native, build_case(layouts, HEADS["gqa-64"], 16, torch.bfloat16))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("window", [None, 70])
def test_a_row_is_the_same_in_any_batch_and_chunk(native: NativeKernels, window: int | None) -> None:
    """Of the sequences that share a document, two take it from the same tasks; alone, each reads it by itself."""
    own = tuple(SequenceLayout(n, m) for n, m in ((300, 1), (5, 1), (1500, 1), (64, 1), (63, 60), (0, 1100)))
    layouts = (*own, *(SequenceLayout(620 + n, 1 + n, (("document", 608),)) for n in range(3)))
    case = build_case(layouts, HEADS["gqa-64"], 16, torch.bfloat16)
    case = replace(case, rules=ScoreRules(0.17, window=window))
    together = attend(native, case, is_invariant=True)
    start = 0
    for sequence in case.batch.sequences:
        for index in range(0, sequence.num_new, 5):
            single = replace(sequence, num_context=sequence.num_context + index, num_new=1)
            query = case.query[start + index : start + index + 1]
            alone = attend(native, replace(case, query=query, batch=PagedBatch((single,), 16)), is_invariant=True)
            assert torch.equal(alone[0], together[start + index])
        start += sequence.num_new


def test_what_is_not_finite_stays_in_its_row(native: NativeKernels) -> None:
    case = build_case(LAYOUTS["shared"], HEADS["gqa-64"], 16, torch.bfloat16)
    sound = attend(native, case)
    last = case.batch.sequences[2]
    case.key_cache[last.block_ids[-1], last.num_context % 16] = torch.nan
    case.query[4] = torch.inf
    found = attend(native, case)
    broken = [row for row, output in enumerate(found) if not output.isfinite().all()]
    assert broken == [2, 4]
    others = [row for row in range(len(found)) if row not in broken]
    assert torch.equal(found[others], sound[others])


@pytest.mark.parametrize("layout", ["decodes", "mixed", "shared", "long chunk"])
@pytest.mark.parametrize("rules", ["softcap", "all", "plain"])
@pytest.mark.parametrize("heads", ["gqa-64", "mha-96", "mha-256"])
@pytest.mark.parametrize("dtype", GREATEST, ids=str)
def test_quantised_attention(native: NativeKernels, dtype: torch.dtype, heads: str, rules: str, layout: str) -> None:
    case = build_case(LAYOUTS_HERE[layout], HEADS[heads], 16, torch.bfloat16)
    chosen = RULES.get(rules, case.rules)
    sinks, slopes = (None if x is None else x[: HEADS[heads].num_heads] for x in (chosen.sinks, chosen.slopes))
    case = replace(case, rules=replace(chosen, sinks=sinks, slopes=slopes))
    key_numbers, key_scales = quantise(case.key_cache, dtype, torch.bfloat16)
    value_numbers, value_scales = quantise(case.value_cache, dtype, torch.bfloat16)
    expected = reference.paged_attention(
        case.query, key_numbers, value_numbers, case.batch, case.rules, KVScales(key_scales, value_scales)
    )
    (num_heads, dim), num_kv_heads = case.query.shape[1:], case.key_cache.shape[2]
    keys, values = tiled_keys(key_numbers), tiled_values(value_numbers)
    heads_first = KVScales(*(x.permute(2, 0, 1).contiguous() for x in (key_scales, value_scales)))
    struct = struct_of_cache(keys, values, dim, heads_first)
    plan = plan_step(case.batch, num_heads // num_kv_heads, case.rules.window, is_invariant=False)
    of_heads = AttentionHeads.of(num_heads, num_kv_heads, dim, case.rules)
    found = native.attention(case.query, struct, plan, of_heads)
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=1e-2)


@pytest.mark.parametrize("dtype", GREATEST, ids=str)
def test_quantised_store(native: NativeKernels, dtype: torch.dtype) -> None:
    """To the bit as the reference: halves, the smallest numbers, zeros, and what is not finite."""
    num_tokens, num_kv_heads, dim = 20, 3, 64
    key, value = (torch.randn(2, num_tokens, num_kv_heads, dim) * torch.logspace(-9, 3, dim)).bfloat16()
    key[3], value[5, 1], key[6, 0, 2], value[7, 2, 63] = 0, 0, torch.nan, torch.inf
    key[8] = (torch.arange(dim) - 31.5).bfloat16()
    slots = torch.randperm(64)[:num_tokens]
    found = torch.zeros(2, num_kv_heads, 4, 16 * dim, dtype=torch.int8).view(dtype).transpose(1, 2)
    scales = KVScales(*torch.zeros(2, num_kv_heads, 4, 16).bfloat16())
    native.store(key, value, struct_of_cache(found[0], found[1], dim, scales), slots)
    of_keys, of_values = (key, tiled_keys, scales.key), (value, tiled_values, scales.value)
    for (x, tiled, scale), cache in zip((of_keys, of_values), found, strict=True):
        numbers, wanted = quantise(x, dtype, torch.bfloat16)
        rows = torch.zeros(64, num_kv_heads, dim, dtype=torch.int8).view(dtype)
        rows.view(torch.int8)[slots] = numbers.view(torch.int8)
        expected = tiled(rows.view(4, 16, num_kv_heads, dim))
        assert torch.equal(scale.flatten(1).T[slots].nan_to_num(7.5), wanted.nan_to_num(7.5))
        is_sound = wanted.isfinite().unsqueeze(-1).expand(-1, -1, dim)
        sound = torch.zeros(64, num_kv_heads, dim, dtype=torch.bool)
        sound[slots] = is_sound
        masks = tiled(sound.view(4, 16, num_kv_heads, dim))
        assert torch.equal(cache.contiguous().view(torch.int8)[masks], expected.contiguous().view(torch.int8)[masks])


def test_store_and_attend(native: NativeKernels) -> None:
    """Keys and values come as views with their heads first; the queries' heads are first in memory."""
    case = build_case(LAYOUTS["mixed"], HEADS["gqa-64"], 16, torch.bfloat16)
    slots = torch.tensor(case.batch.slot_mapping())
    key, value = (cache.flatten(0, 1)[slots] for cache in (case.key_cache, case.value_cache))
    key_cache, value_cache = (
        cache.flatten(0, 1).index_fill(0, slots, torch.nan).view_as(cache)
        for cache in (case.key_cache, case.value_cache)
    )
    keys, values = tiled_keys(key_cache), tiled_values(value_cache)
    plan = NativePlan(native, plan_step(case.batch, 3, None, is_invariant=False))
    query, key, value = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (case.query, key, value))
    output = plan.store_and_attend(query, key, value, struct_of_cache(keys, values, 64), slots, case.rules)
    assert torch.equal(output, attend(native, case))


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
