"""GGUF headers: read once, in the same way."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.gguf_reading import headers_read_once
from tests.engine.tiny_gguf import write_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    return path


def test_a_header_is_read_once_in_the_block_and_as_ever_behind_it(path: Path) -> None:
    original = gguf.GGUFReader
    with headers_read_once():
        assert gguf.GGUFReader(path) is gguf.GGUFReader(path)
    assert gguf.GGUFReader is original
    assert gguf.GGUFReader(path) is not gguf.GGUFReader(path)


def test_what_is_read_is_the_same(path: Path) -> None:
    plain = gguf.GGUFReader(path)
    with headers_read_once():
        reader = gguf.GGUFReader(path)
    assert type(reader.data) is np.ndarray
    assert list(reader.fields) == list(plain.fields)
    for name, field in plain.fields.items():
        assert reader.fields[name].contents() == field.contents()
    assert [tensor.name for tensor in reader.tensors] == [tensor.name for tensor in plain.tensors]
    for tensor, expected in zip(reader.tensors, plain.tensors, strict=True):
        assert np.array_equal(tensor.data, expected.data)
