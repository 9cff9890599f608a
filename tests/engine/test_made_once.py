"""Folders made once: whole or not there."""

import fcntl
import threading
from pathlib import Path

import pytest

from engine.made_once import LOCK, PARTIAL_PREFIX, made_once


def write(folder: Path) -> None:
    (folder / "file").write_text("content")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_made_once(tmp_path: Path) -> None:
    folder = made_once(tmp_path / "cache" / "made", write)
    assert names(folder) == {"file"}
    assert names(folder.parent) == {"made"}
    assert made_once(folder, lambda partial: pytest.fail("it is there")) == folder


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        made_once(tmp_path / "made", fail)
    assert names(tmp_path) == set()


def test_the_first_of_two_stays(tmp_path: Path) -> None:
    def be_second(folder: Path) -> None:
        made_once(tmp_path / "made", lambda partial: (partial / "file").touch())
        write(folder)

    made_once(tmp_path / "made", be_second)
    assert (tmp_path / "made" / "file").read_text() == ""
    assert names(tmp_path) == {"made"}


def test_what_an_ended_process_left_is_deleted(tmp_path: Path) -> None:
    abandoned, in_work, begun = (tmp_path / f"{PARTIAL_PREFIX}{name}" for name in ("abandoned", "in-work", "begun"))
    for partial in (abandoned, in_work):
        partial.mkdir()
        (partial / LOCK).touch()
        (partial / "half").touch()
    begun.mkdir()
    with (in_work / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made_once(tmp_path / "made", write)
    assert names(tmp_path) == {"made", in_work.name, begun.name}


def test_two_threads_make_one(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def make(folder: Path) -> None:
        both.wait(30)
        write(folder)

    threads = [threading.Thread(target=made_once, args=(tmp_path / "made", make)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert names(tmp_path) == {"made"}
    assert names(tmp_path / "made") == {"file"}
