"""The type of a GGUF file, read without the gguf package, against that package's writer and its list of types."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter, LlamaFileType

from engine.gguf_header import FILE_TYPES, gguf_type


def write(path: Path, file_type: int | None) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_languages(["en", "de"])  # arrays of strings and of numbers, and strings, stand before it
    writer.add_array("general.numbers", [1, 2, 3])
    writer.add_bool("general.flag", True)
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_tensor("a", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_types_are_those_of_llama_cpp() -> None:
    known = {kind.value: kind.name.removeprefix("ALL_").removeprefix("MOSTLY_") for kind in LlamaFileType}
    assert {number: known[number] for number in FILE_TYPES} == FILE_TYPES


@pytest.mark.parametrize(("file_type", "name"), [(3, "Q4_1"), (15, "Q4_K_M"), (32, "BF16"), (5000, None), (None, None)])
def test_type_of_a_file(tmp_path: Path, file_type: int | None, name: str | None) -> None:
    write(tmp_path / "model.gguf", file_type)
    assert gguf_type(tmp_path / "model.gguf") == name


def test_files_that_are_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, 3)
    content = path.read_bytes()
    for size in range(0, content.index(b"general.file_type"), 7):
        path.write_bytes(content[:size])
        assert gguf_type(path) is None
    path.write_bytes(b"GGUF" + b"\xff" * 200)
    assert gguf_type(path) is None
