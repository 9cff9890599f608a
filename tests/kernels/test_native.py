"""The C kernels against their oracles, where this machine can compile and run them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels import ops, reference
from kernels.cpu_plan import FEW_QUERIES
from kernels.native import building
from kernels.native.building import NativeBuild
from kernels.native.decoding import NativeDecode
from kernels.native.library import NativeKernels
from kernels.native.planning import SPLIT_KEYS, is_served
from kernels.native.toolchain import is_supported
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


DRAFTS = (
    SequenceLayout(70, 5),
    SequenceLayout(0, 3),
    *(SequenceLayout(130 + n, 1 + n, (("document", 128),)) for n in range(4)),
    SequenceLayout(15, FEW_QUERIES),
)


def layouts_of(name: str) -> Sequence[SequenceLayout]:
    return DRAFTS if name == "drafts" else LAYOUTS[name]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> NativeKernels:
    if not is_supported():
        pytest.skip("this processor has no AVX-512 bfloat16")
    kernels = NativeBuild(tmp_path_factory.mktemp("native")).wait(COMPILE_SECONDS)
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


def heads_first_caches(case: AttentionCase) -> list[Tensor]:
    """Return K and V as the engine has them on a CPU."""
    return [cache.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for cache in (case.key_cache, case.value_cache)]


def attend(native: NativeKernels, case: AttentionCase) -> Tensor:
    """Attend with queries that are a view of wider rows."""
    num_tokens, num_heads, head_dim = case.query.shape
    num_kv_heads = case.key_cache.shape[2]
    key_cache, value_cache = heads_first_caches(case)
    wide = torch.full((num_tokens, num_heads + 2, head_dim), torch.nan, dtype=torch.bfloat16)
    wide[:, :num_heads] = case.query
    assert is_served(num_heads, num_kv_heads, head_dim)
    plan = ops.plan_attention(
        case.batch,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        window=case.rules.window,
        native=NativeDecode(native, num_heads, num_kv_heads),
    )
    return ops.paged_attention(wide[:, :num_heads], key_cache, value_cache, plan, case.rules)


def test_queries_with_their_heads_first(native: NativeKernels) -> None:
    case = build_case(LAYOUTS["shared"], HEADS["gqa-64"], 16, torch.bfloat16)
    heads_first = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    plan = NativeDecode(native, 9, 3).plan(list(enumerate(case.batch.sequences)), 16, None)
    key_cache, value_cache = heads_first_caches(case)
    output = torch.empty_like(case.query)
    plan.attend(heads_first, key_cache, value_cache, case.rules, output)
    assert torch.equal(output, attend(native, case))


def assert_equals_reference(native: NativeKernels, case: AttentionCase) -> None:
    """Compare what the kernel computed; what comes of longer chunks is torch's and rounded more often."""
    expected = reference.paged_attention(case.query, case.key_cache, case.value_cache, case.batch, case.rules)
    found = attend(native, case)
    assert found.isfinite().all()
    starts = accumulate((sequence.num_new for sequence in case.batch.sequences), initial=0)
    shares = zip(starts, case.batch.sequences, strict=False)
    rows = [start + i for start, s in shares if s.num_new <= FEW_QUERIES for i in range(s.num_new)]
    torch.testing.assert_close(found[rows], expected[rows], rtol=ROUNDING, atol=1e-2)


@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("layout", [*LAYOUTS, "drafts"])
def test_attention_equals_reference(native: NativeKernels, layout: str, heads: str, block_size: int) -> None:
    assert_equals_reference(native, build_case(layouts_of(layout), HEADS[heads], block_size, torch.bfloat16))


RULES = {
    "window-1": ScoreRules(0.17, window=1),
    "window-20": ScoreRules(0.17, window=20),
    "window-100": ScoreRules(0.17, window=100),
    "sinks": ScoreRules(0.17, sinks=torch.linspace(-2.0, 3.0, 9)),
    "slopes": ScoreRules(0.17, slopes=torch.logspace(-0.5, -8, 9, base=2.0)),
    "all": ScoreRules(
        0.5,
        window=33,
        sinks=torch.linspace(3.0, -2.0, 9),
        slopes=torch.logspace(-1, -9, 9, base=2.0),
    ),
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("layout", ["decodes", "window", "shared", "nested", "drafts"])
def test_rules_equal_reference(native: NativeKernels, layout: str, rules: str) -> None:
    case = build_case(layouts_of(layout), HEADS["gqa-64"], 16, torch.bfloat16)
    assert_equals_reference(native, replace(case, rules=RULES[rules]))


LONG = (
    *(SequenceLayout(SPLIT_KEYS + 480 + n, 1, (("document", SPLIT_KEYS + 320),)) for n in (1, 90)),
    SequenceLayout(2 * SPLIT_KEYS + 5, 1),
)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("window", [None, SPLIT_KEYS + 100])
def test_long_sequences_are_split(native: NativeKernels, window: int | None) -> None:
    case = build_case(LONG, HEADS["gqa-64"], 16, torch.bfloat16)
    assert_equals_reference(native, replace(case, rules=ScoreRules(0.17, window=window)))


def test_groups_that_are_larger_than_a_task(native: NativeKernels) -> None:
    layouts = tuple(SequenceLayout(130 + n, 1, (("document", 128),)) for n in range(25))
    assert_equals_reference(native, build_case(layouts, HEADS["gqa-64"], 16, torch.bfloat16))


@pytest.mark.usefixtures("two_threads")
def test_a_row_is_the_same_in_any_batch(native: NativeKernels) -> None:
    layouts = tuple(SequenceLayout(n, 1) for n in (300, 5, 1500, 64, 63, 65))
    case = build_case(layouts, HEADS["gqa-64"], 16, torch.bfloat16)
    together = attend(native, case)
    for index, sequence in enumerate(case.batch.sequences):
        batch = replace(case.batch, sequences=(sequence,))
        alone = attend(native, replace(case, query=case.query[index : index + 1], batch=batch))
        assert torch.equal(alone[0], together[index])


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


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("shape", [(1, 16), (3, 48), (1, 7, 576), (130, 576)])
def test_rms_norm(native: NativeKernels, shape: tuple[int, ...]) -> None:
    x = (torch.randn(shape) * torch.logspace(-3, 3, shape[-1])).bfloat16()
    weight = torch.randn(shape[-1]).bfloat16()
    expected = reference.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(native.rms_norm(x, weight, 1e-5), expected, rtol=2 * ROUNDING, atol=0)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("shape", [(1, 32), (1, 5, 3072), (70, 3072)])
def test_silu_mul(native: NativeKernels, shape: tuple[int, ...]) -> None:
    gate_up = (torch.randn(shape) * 8).bfloat16()
    gate_up[..., :4] = torch.tensor([-1e30, 1e30, -90.0, torch.nan]).bfloat16()
    expected = reference.silu_mul(gate_up)
    torch.testing.assert_close(native.silu_mul(gate_up), expected, rtol=2 * ROUNDING, atol=1e-30, equal_nan=True)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("num_tokens", "heads"), [(1, Heads(9, 3, 64)), (5, Heads(2, 1, 32)), (90, Heads(8, 8, 128))])
def test_rotate_and_store(native: NativeKernels, num_tokens: int, heads: Heads) -> None:
    num_all, dim = heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim
    qkv = torch.randn(num_tokens, num_all, dim).bfloat16()
    cos, sin = torch.randn(2, num_tokens, dim).bfloat16()
    memory = torch.zeros(2, heads.num_kv_heads, 12, 16, dim, dtype=torch.bfloat16)
    key_cache, value_cache = memory.permute(0, 2, 3, 1, 4)
    slots = torch.randperm(12 * 16)[:num_tokens]
    query, key, value = qkv.split([heads.num_heads, heads.num_kv_heads, heads.num_kv_heads], dim=1)
    expected = torch.zeros_like(memory).permute(0, 2, 3, 1, 4)
    reference.store_kv(reference.rotate(key, cos, sin), value, expected[0], expected[1], slots)
    rotated = reference.rotate(query, cos, sin)
    native.rotate_and_store(qkv, heads.num_heads, cos, sin, key_cache, value_cache, slots)
    torch.testing.assert_close(qkv[:, : heads.num_heads], rotated, rtol=ROUNDING, atol=1e-2)
    torch.testing.assert_close(key_cache, expected[0], rtol=ROUNDING, atol=1e-2)
    assert torch.equal(value_cache, expected[1])


def test_a_compiled_file_is_found_again(native: NativeKernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is not None
    monkeypatch.setattr(building, "_compile", lambda *_: pytest.fail("compiled again"))
    assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is not None
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


def test_a_damaged_file_is_compiled_again(native: NativeKernels, tmp_path: Path) -> None:
    assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is not None
    (compiled,) = tmp_path.iterdir()
    compiled.unlink()
    compiled.write_bytes(b"\x7fELF cut short")
    assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is not None


@pytest.mark.parametrize("compiler", ["missing", "broken"])
def test_without_a_compiler_there_are_none(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiler == "broken":
        (tmp_path / "cc").write_text('#!/bin/sh\necho cc 1.0\ntest "$1" = --version\n')
        (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(building, "is_supported", lambda: True)
    assert NativeBuild(tmp_path / "cache").wait(COMPILE_SECONDS) is None
