"""A self-test that was passed is not taken again, until anything that it depends on is another."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine import self_test_record
from engine.attention_layers import UnsupportedModel
from engine.linears import Numerics
from engine.model_loader import LoadedModel, load_model
from engine.self_test import self_test
from engine.self_test_record import FOLDER_NAME, SelfTestRecord
from tests.engine.tiny_configs import SERVED
from tests.engine.tiny_models import generate, make_engine, outputs_of, random_model, run

PROMPTS = [[5, 6, 7], list(range(10, 40)), [90]]


class Loading:
    """Loads one model again and again, and counts the self-tests."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.cache_dir = folder.parent / "cache"
        self.tests = 0

        def counting(*arguments: Any) -> None:
            self.tests += 1
            self_test(*arguments)

        monkeypatch.setattr("engine.model_loader.self_test", counting)

    def __call__(self, **changes: Any) -> LoadedModel:
        options: dict[str, Any] = {
            "dtype": torch.float32,
            "device": torch.device("cpu"),
            "cache_dir": self.cache_dir,
            "native_kernels": False,
        }
        return load_model(str(self.folder), **(options | changes))

    def records(self) -> list[Path]:
        return sorted((self.cache_dir / FOLDER_NAME).iterdir())


@pytest.fixture
def llama() -> PreTrainedModel:
    return random_model(SERVED["llama"]())


@pytest.fixture
def loading(llama: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loading:
    llama.save_pretrained(tmp_path / "model")
    return Loading(tmp_path / "model", monkeypatch)


def test_passed_once_and_answering_the_same(loading: Loading, llama: PreTrainedModel) -> None:
    expected = [generate(llama, prompt, 12) for prompt in PROMPTS]
    for _ in range(3):
        assert outputs_of(run(make_engine(loading()), PROMPTS, 12)) == expected
    assert loading.tests == 1
    assert len(loading.records()) == 1


@pytest.mark.parametrize("changes", [{"dtype": torch.bfloat16}, {"numerics": Numerics(batch_invariant=True)}])
def test_another_type_or_other_numerics_are_tested(loading: Loading, changes: dict[str, Any]) -> None:
    loading()
    loading(**changes)
    assert loading.tests == 2
    loading(**changes)
    loading()
    assert loading.tests == 2
    assert len(loading.records()) == 2


def change_weights(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Put another file of the same size and time in the place of the first."""
    path = folder / "model.safetensors"
    content, status = bytearray(path.read_bytes()), path.stat()
    content[-2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def change_config(folder: Path, patch: pytest.MonkeyPatch) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text("utf-8").replace("{", '{"note": 1, ', 1), "utf-8")


def change_own_source(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(self_test_record, "PACKAGES", (folder,))


def change_processor(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(self_test_record, "cpu_flags", lambda: "flags: none")


def change_threads(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "get_num_threads", lambda: 77)


def change_package(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(self_test_record, "_version", lambda package: "9.9" if package == "transformers" else None)


CHANGES = (change_weights, change_config, change_own_source, change_processor, change_threads, change_package)


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_it_depends_on_has_it_taken_again(
    loading: Loading, change: Callable[[Path, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    loading()
    change(loading.folder, monkeypatch)
    loading()
    assert loading.tests == 2
    loading()
    assert loading.tests == 2
    assert len(loading.records()) == 2


def test_a_gpu_counts(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(name: str) -> SelfTestRecord:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        facts: dict[str, Any] = {"dtype": torch.bfloat16, "numerics": Numerics(), "native": None}
        found = self_test_record.self_test_record(
            loading.cache_dir, str(loading.folder), device=torch.device("cuda"), **facts
        )
        assert found is not None
        return found

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    record("H200").keep()
    assert record("H200").has_passed()
    assert not record("L4").has_passed()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert not record("H200").has_passed()


def test_our_own_source_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test_record, "PACKAGES", (tmp_path,))
    digests = set()
    for name, content in (("a.py", "1"), ("a.py", "2"), ("b.c", "2"), ("c.h", "2"), ("d.pyc", "2")):
        (tmp_path / name).write_text(content)
        digests.add(self_test_record._source_digest())
    assert len(digests) == 4  # compiled Python is not source


def test_a_failure_is_not_kept(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("kernels.ops.paged_attention", lambda query, *_: query.clone())
        for _ in range(2):
            with pytest.raises(UnsupportedModel, match="its paged logits differ"):
                loading()
    assert loading.tests == 2
    assert not (loading.cache_dir / FOLDER_NAME).exists()
    loading()
    assert loading.tests == 3


def test_a_damaged_record_counts_for_nothing(loading: Loading) -> None:
    loading()
    (record,) = loading.records()
    record.write_bytes(b"\xff")
    loading()
    assert loading.tests == 2
    loading()
    assert loading.tests == 2


def test_no_room_for_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    record = SelfTestRecord(tmp_path, {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        record.keep()
    assert not record.has_passed()
    assert list((tmp_path / FOLDER_NAME).iterdir()) == []
    record.keep()
    assert record.has_passed()
    assert not SelfTestRecord(tmp_path, {"a": 2}).has_passed()
