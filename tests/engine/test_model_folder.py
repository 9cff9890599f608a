"""Model folders that refer to files outside of them are refused before anything is read."""

import json
from pathlib import Path

import pytest
import torch

from engine.attention_layers import UnsupportedModel
from engine.model_folder import UnsafeFolder, check_folder
from engine.model_loader import load_model


def with_shard(folder: Path, name: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    return folder


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/../../x.safetensors", ".."])
def test_shard_elsewhere(tmp_path: Path, name: str) -> None:
    folder = with_shard(tmp_path / "model", name)
    with pytest.raises(UnsupportedModel, match=r"index.json names the file .* which is not in its folder"):
        load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"), cache_dir=tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 5}', "[" * 100_000])
def test_index_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(UnsafeFolder, match="is no index of weights"):
        check_folder(tmp_path)


def test_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = with_shard(tmp_path / "model", "a.safetensors")
    (tmp_path / "secret").write_text("x")
    (folder / "a.safetensors").symlink_to(tmp_path / "secret")
    with pytest.raises(UnsafeFolder, match=r"'a\.safetensors' is a link out of its folder"):
        check_folder(folder)


def test_links_of_the_hubs_cache_and_within_the_folder(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "f00").write_text("x")
    folder = with_shard(tmp_path / "snapshots" / "main", "a.safetensors")
    (folder / "a.safetensors").symlink_to(Path("../../blobs/f00"))
    (folder / "b.safetensors").symlink_to("a.safetensors")
    check_folder(folder)
