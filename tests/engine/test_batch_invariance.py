"""A model that must not depend on the batch: the same tokens and logits, to the bit, whatever else is going on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention_layers import UnsupportedModel
from engine.linears import Int8Linear, Numerics, PackedLinear, Weights, has_int8
from engine.model_loader import LoadedModel, load_model
from engine.request import Request, SamplingParams
from engine.row_tiles import SIZES, EvenActivation, RowTiles, agreeing_sizes, is_uneven, tiles_for
from tests.engine.tiny_configs import SERVED
from tests.engine.tiny_models import make_engine, random_model

CPU = torch.device("cpu")
INVARIANT = Numerics(batch_invariant=True)
DENSE = ("llama", "gemma2", "opt")  # windows, softcaps, sinks and ALiBi are tried with the kernels
PROMPTS: tuple[list[int], ...] = (
    [5, 6, 7],
    list(range(10, 60)),
    [*range(10, 50), 3, 4],
    [90],
    list(range(60, 95)),
    [*range(10, 50), 9, 8, 7],
)


def load(folder: Path, name: str, dtype: torch.dtype, numerics: Numerics = INVARIANT) -> LoadedModel:
    random_model(SERVED[name]()).to(dtype).save_pretrained(folder)  # type: ignore[arg-type]  # nn.Module.to, hidden
    return load_model(str(folder), dtype=dtype, device=CPU, cache_dir=folder / "cache", numerics=numerics)


def run(loaded: LoadedModel, chosen: Sequence[int], **changes: Any) -> tuple[dict[int, object], int]:
    """Return, by prompt, tokens and log-probabilities of chosen prompts in one engine, and its preemptions."""
    engine = make_engine(loaded, **changes)
    requests: dict[int, Request] = {}
    for index in chosen:
        temperature = 0.0 if index % 2 else 0.9
        params = SamplingParams(max_tokens=9, ignore_eos=True, temperature=temperature, seed=index, logprobs=5)
        requests[index] = engine.add(str(index), PROMPTS[index], params)
    while engine.has_work:
        engine.step()
    found: dict[int, object] = {index: (one.output_token_ids, one.logprobs) for index, one in requests.items()}
    return found, engine.status().preemptions


def check_requests(loaded: LoadedModel) -> None:
    everybody = range(len(PROMPTS))
    expected: dict[int, object] = {}
    for index in everybody:
        expected |= run(loaded, [index], enable_prefix_caching=False)[0]
    assert run(loaded, everybody)[0] == expected
    assert run(loaded, everybody[::-1], token_budget=7, max_num_seqs=5)[0] == expected
    num_blocks = 26 if len(loaded.model.windows) == 1 else 30
    found, preemptions = run(loaded, everybody, num_blocks=num_blocks, token_budget=16, max_num_seqs=6)
    assert preemptions > 0
    assert found == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DENSE)
def test_requests_of_any_company(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    check_requests(load(tmp_path, name, dtype))


@pytest.mark.skipif(not has_int8(CPU), reason="this CPU has no AVX-512 VNNI")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_of_int8(dtype: torch.dtype, tmp_path: Path) -> None:
    check_requests(load(tmp_path, "llama", dtype, Numerics(Weights.INT8, batch_invariant=True)))


@pytest.mark.parametrize("name", ["gpt2", "gpt-oss", "qwen3-moe"])
def test_layers_that_multiply_in_their_own_way_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"batch_invariant is asked for, but its .* multiplies in its own way"):
        load(tmp_path, name, torch.bfloat16)


def test_logits_that_depend_on_the_batch_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowTiles, "forward", lambda self, x: self.layer(x) * (1 + x.numel() / x.shape[-1] / 2**20))
    with pytest.raises(UnsupportedModel, match="its logits depend on what else is in a step"):
        load(tmp_path, "llama", torch.float32)


# --- tiles ---


@pytest.mark.parametrize("sizes", [SIZES, (64, 128, 256, 512), (1, 2, 4, 8), (2, 512), (7,)], ids=str)
def test_tiles_cover_all_rows_once(sizes: tuple[int, ...]) -> None:
    for num_rows in (*range(1, 70), 127, 300, 511, 512, 513, 2000):
        tiles = tiles_for(num_rows, sizes)
        assert [tile.start for tile in tiles] == [0, *(tile.stop for tile in tiles[:-1])]
        assert tiles[-1].stop == num_rows
        assert all(tile.stop - tile.start <= tile.size and tile.size in sizes for tile in tiles)


def test_a_full_tile_is_not_padded() -> None:
    assert [tile.size for tile in tiles_for(512, SIZES)] == [512]
    assert [tile.size for tile in tiles_for(640, SIZES)] == [512, 128]
    assert [tile.size for tile in tiles_for(3, SIZES)] == [4]


def test_sizes_agree_only_where_the_order_of_addition_is_the_same() -> None:
    """A layer that adds up from behind for 8 to 64 rows, and another that depends on the place in a tile."""

    def make(weight: Tensor) -> PackedLinear:
        return PackedLinear(weight, None)

    def turning(weight: Tensor) -> object:
        ordinary, reversed_ = make(weight), make(weight.flip(1).contiguous())
        return lambda x: reversed_(x.flip(1).contiguous()) if 8 <= x.shape[0] <= 64 else ordinary(x)

    weight = torch.empty(96, 257)
    plain = agreeing_sizes(make, weight)
    assert {4, 16, 128, 512} <= set(plain)
    assert set(agreeing_sizes(turning, weight)) == set(plain) - {8, 16, 32, 64}  # type: ignore[arg-type]
    by_place = agreeing_sizes(lambda w: lambda x: make(w)(x) + torch.arange(x.shape[0])[:, None], weight)
    assert by_place == (1,)


def test_an_activation_computes_every_element_alike() -> None:
    gelu = torch.nn.GELU()
    assert is_uneven(gelu, torch.float32)
    x = torch.randn(900, 77, generator=torch.Generator().manual_seed(0))
    whole = EvenActivation(gelu)(x)
    torch.testing.assert_close(whole, gelu(x), rtol=0, atol=1e-6)
    for rows in (slice(0, 1), slice(5, 8), slice(100, 700)):
        assert torch.equal(EvenActivation(gelu)(x[rows].clone()), whole[rows])
    pair = torch.cat((x, x), dim=1)[:, 77:]  # a view with gaps, as half of a joined projection is
    assert torch.equal(EvenActivation(gelu)(pair), whole)


# --- int8 ---


@pytest.mark.skipif(not has_int8(CPU), reason="this CPU has no AVX-512 VNNI")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_rows", [1, 5, 128, 129, 300])
def test_int8_layer_equals_its_weights_written_out(num_rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 200, generator=generator)
    weight[3] = 0
    weight[7] *= 1000
    bias = torch.randn(48, generator=generator)
    x = torch.randn(num_rows, 200, generator=generator).to(dtype)
    x[0] *= 1e4
    x[0, 17] *= 50  # an outlier, which the others of its row must survive
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    rounded = torch.where(scales > 0, (weight / scales).round() * scales, 0.0)
    found = Int8Linear(weight, bias.to(dtype))(x)
    assert found.dtype is dtype
    expected = x.double() @ rounded.double().T + bias.to(dtype).double()
    scale = x.double().abs() @ rounded.double().abs().T + 1e-9
    assert ((found.double() - expected).abs() / scale).max() < (2e-4 if dtype is torch.float32 else 4e-3)


@pytest.mark.skipif(not has_int8(CPU), reason="this CPU has no AVX-512 VNNI")
def test_int8_layer_passes_on_what_is_not_finite_to_its_row_only() -> None:
    x = torch.ones(4, 64)
    x[1, 3], x[2, 5] = torch.nan, torch.inf
    found = Int8Linear(torch.randn(32, 64, generator=torch.Generator().manual_seed(0)), None)(x)
    assert found.isfinite().all(dim=1).tolist() == [True, False, False, True]


def test_int8_on_another_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.linears.has_int8", lambda device: False)
    with pytest.raises(UnsupportedModel, match="weights=int8 needs a CPU with AVX-512 VNNI"):
        load(tmp_path, "llama", torch.float32, Numerics(Weights.INT8))
