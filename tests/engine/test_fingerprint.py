"""A checkpoint's fingerprint: that of its content, as far as a large file's is read."""

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine import checkpoint_files
from engine.checkpoint_files import fingerprint

NAME = "model.safetensors"
FIRST_PIECE_END = 4096


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"a": torch.arange(30_000), "b": torch.zeros(100)}, folder / NAME)
    return folder


@pytest.fixture
def large(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, taken for large: of its 240 kB, a piece in each 20 kB is read."""
    monkeypatch.setattr(checkpoint_files, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(checkpoint_files, "PIECE_EVERY_BYTES", 20_000)
    return checkpoint


def rewrite(folder: Path, change: Callable[[bytearray], None]) -> None:
    """Change the file's content, and neither its size nor its time."""
    path = folder / NAME
    status, content = path.stat(), bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip(start: int, stop: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[start:stop] = bytes(byte ^ 255 for byte in content[start:stop])

    return change


def test_small_files_are_known_by_their_content_alone(checkpoint: Path, tmp_path: Path) -> None:
    first = fingerprint(str(checkpoint))
    shutil.copytree(checkpoint, tmp_path / "copy", copy_function=shutil.copyfile)
    os.utime(tmp_path / "copy" / NAME, ns=(0, 0))
    assert fingerprint(str(tmp_path / "copy")) == first
    rewrite(checkpoint, flip(100_000, 100_001))
    assert fingerprint(str(checkpoint)) != first


def test_of_large_files_pieces_all_over_are_read(large: Path) -> None:
    seen = {fingerprint(str(large))}
    size = (large / NAME).stat().st_size
    header = 8 + struct.unpack("<Q", (large / NAME).read_bytes()[:8])[0]
    for start in (header, 101_000, size - 1):  # a piece's place, any twenty thousand bytes, the end
        rewrite(large, flip(start, min(start + 20_000, size)))
        seen.add(fingerprint(str(large)))
    assert len(seen) == 4


def test_of_large_files_names_and_time_count(large: Path) -> None:
    seen = {fingerprint(str(large))}
    rewrite(large, lambda content: content.__setitem__(slice(0, 400), content[:400].replace(b'"a"', b'"c"')))
    seen.add(fingerprint(str(large)))
    os.utime(large / NAME, ns=(0, 0))
    seen.add(fingerprint(str(large)))
    (large / "config.json").write_text('{"a": 1}')
    seen.add(fingerprint(str(large)))
    assert len(seen) == 4


def test_a_change_of_a_few_bytes_with_the_same_time_may_be_missed(large: Path) -> None:
    """Which is what it costs that loading stays quick; docs/architectures.md says so."""
    first = fingerprint(str(large))
    header = 8 + struct.unpack("<Q", (large / NAME).read_bytes()[:8])[0]
    rewrite(large, flip(header + FIRST_PIECE_END, header + FIRST_PIECE_END + 10))
    assert fingerprint(str(large)) == first
