"""What models and caches take of a machine's memory."""

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from engine.kv_cache import KVCache, KVShape
from engine.kv_layout import AttentionLayer, groups_of
from engine.memory import FilePages, use_huge_pages
from tests.engine.tiny_configs import SERVED
from tests.engine.tiny_models import load, random_model

MIB = 2**20
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_cache_takes_memory_for_the_blocks_that_are_written() -> None:
    layers = tuple(AttentionLayer(9, 3, 64, None, index) for index in range(30))
    cache = KVCache(KVShape(layers, groups_of(layers, 128), 16, torch.bfloat16), 8_192, torch.device("cpu"))  # 2.8 GiB
    before = resident_bytes()
    for key_cache, value_cache in cache.layers:
        key_cache[5] = 1.0
        value_cache[5] = 1.0
    assert resident_bytes() - before < 32 * MIB


def test_a_model_whose_weights_are_packed_leaves_its_file(tmp_path: Path) -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no bfloat16 units: the weights stay those of the file")
    loaded = load(random_model(SERVED["llama"]()).to(torch.bfloat16), tmp_path)  # type: ignore[arg-type]  # hidden
    assert loaded.model.dtype is torch.bfloat16
    assert f"{tmp_path}/model.safetensors" not in Path("/proc/self/maps").read_text()


def test_pages_of_a_weight_that_is_copied_are_given_up(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    save_file({"weight": torch.ones(32 * MIB, dtype=torch.int8), "kept": torch.ones(5, dtype=torch.int8)}, path)
    with safe_open(path, "pt") as file:
        weight, kept = file.get_tensor("weight"), file.get_tensor("kept")
    assert int(weight.sum()) == 32 * MIB
    before = resident_bytes()
    FilePages().forget(weight)
    FilePages().forget(kept)
    FilePages().forget(torch.ones(9))  # of no file
    if "big.safetensors" in Path("/proc/self/maps").read_text():
        assert resident_bytes() < before - 30 * MIB
    assert int(weight.sum()) == 32 * MIB  # read again
    assert kept.tolist() == [1] * 5


def huge_bytes(tensor: torch.Tensor) -> int:
    """Return how much huge pages hold of the mappings that a tensor lies in."""
    found, is_its = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if "-" in name and not name.endswith(":"):
            start, stop = (int(address, 16) for address in name.split("-"))
            is_its = start < tensor.data_ptr() + tensor.nbytes and tensor.data_ptr() < stop
        elif name == "AnonHugePages:" and is_its:
            found += int(values[0]) * 1024
    return found


def test_weights_lie_in_huge_pages() -> None:
    if not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text():
        pytest.skip("this system has no huge pages to ask for")
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1):
        pytest.skip("this system makes huge pages when it finds the time")
    large, small = torch.arange(16 * MIB, dtype=torch.int32), torch.ones(5)
    use_huge_pages([large, small])
    assert huge_bytes(large) > 56 * MIB  # of 64: the ends may share a page with something else
    assert large[:: 4 * MIB].tolist() == list(range(0, 16 * MIB, 4 * MIB))
    assert small.tolist() == [1] * 5
