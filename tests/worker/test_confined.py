"""Work in a process of its own: whatever ends that, the next piece of work finds another."""

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

from worker.confined import MIB, Confined, NoAnswer


@pytest.fixture
def confined() -> Iterator[Confined]:
    found = Confined("tests.worker.confined_answers", 256 * MIB, cpu_seconds=0.2, wall_seconds=60.0)
    with closing(found):
        yield found


def test_answers_come_from_one_process(confined: Confined) -> None:
    first = confined.ask({"do": "print", "text": "\ud800 ü\n"}, b"\n" * 100_000)
    assert first["wanted"]["text"] == "\ud800 ü\n"
    assert first["bytes"] == 100_000
    assert confined.ask({"do": "nothing"})["process"] == first["process"] != os.getpid()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("loop", "it took more than 0.2 s of processor time"),
        ("take memory", "it needs more than 256 MiB"),
        ("die", "its process, which may use 256 MiB, ended with signal 9"),
    ],
)
def test_what_has_no_answer_says_why(confined: Confined, what: str, reason: str) -> None:
    for _ in range(2):
        with pytest.raises(NoAnswer, match=f"^{reason}$"):
            confined.ask({"do": what})
        assert confined.ask({"do": "nothing"})["bytes"] == 0


def test_work_that_takes_too_long_on_the_clock_is_given_up(confined: Confined) -> None:
    confined.wall_seconds = 0.0
    with pytest.raises(NoAnswer, match="it took longer than 0 s"):
        confined.ask({"do": "nothing"})


def test_process_that_was_killed_between_is_not_missed(confined: Confined) -> None:
    first = confined.ask({"do": "nothing"})["process"]
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert confined.ask({"do": "nothing"})["process"] != first


def test_process_ends_with_whoever_asks() -> None:
    confined = Confined("tests.worker.confined_answers", 256 * MIB, cpu_seconds=1.0, wall_seconds=60.0)
    process = confined.ask({"do": "nothing"})["process"]
    del confined
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
