"""The small parts, each on its own."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.worker.fakes import ScriptError, eventually
from worker.errors import ServiceUnavailable
from worker.jobs import PromptJob
from worker.records import Claim
from worker.running.beats import Beat
from worker.running.engine_loop import sampling_params
from worker.running.held import HeldJob, HeldJobs
from worker.running.isolation import isolating
from worker.running.threads import Failure, Flag, ServiceThread

ROOT = Path(__file__).resolve().parent.parent.parent


def held_job(job_id: str, execution_id: str | None = None) -> HeldJob:
    now = datetime.now(UTC)
    job = PromptJob(prompt="hello")
    return HeldJob(Claim(job_id, execution_id or f"x-{job_id}", 1, "default", job, "{}", now, now), claimed_at=0.0)


def test_held_job_ends_once() -> None:
    held = HeldJobs(4)
    job = held_job("a")
    assert held.add([job]) == ()
    assert held.is_unfinished(job)
    assert held.end("x-a")
    assert not held.end("x-a")
    assert not held.end("x-never-held")
    assert (held.all(), held.unfinished()) == ((job,), ())
    assert not held.is_unfinished(job)
    held.remove(["x-a", "x-never-held"])
    assert len(held) == 0
    assert held.find("a") is None


@pytest.mark.parametrize("order", [("x1", "x2"), ("x2", "x1")])
def test_job_may_be_held_under_two_leases(order: tuple[str, str]) -> None:
    held = HeldJobs(4)
    earlier, later = held_job("a", "x1"), held_job("a", "x2")
    held.add([earlier])
    assert held.add([later]) == (earlier,)
    assert held.find("a") is later
    assert held.room == 2
    held.remove(order[:1])
    assert held.find("a") is (later if order[0] == "x1" else None)
    held.remove(order[1:])
    assert held.find("a") is None
    assert len(held) == 0


def test_held_jobs_tell_who_waits_when_one_goes() -> None:
    held = HeldJobs(1)
    held.add([held_job("a")])
    gone = threading.Event()

    def wait() -> None:
        while len(held):
            held.wait_for_change(60.0)
        gone.set()

    thread = threading.Thread(target=wait)
    thread.start()
    held.remove(["x-a"])
    eventually(gone.is_set)
    thread.join()


def test_isolating_acts_once_where_all_is_well() -> None:
    calls: list[Sequence[int]] = []

    def act(items: Sequence[int]) -> int:
        calls.append(items)
        return sum(items)

    assert isolating(act, [1, 2, 3]) == ([6], [])
    assert isolating(act, []) == ([], [])
    assert calls == [[1, 2, 3]]


def test_isolating_finds_the_item_at_fault() -> None:
    def act(items: Sequence[int]) -> int:
        if 2 in items:
            raise ScriptError(str(items))
        return sum(items)

    results, faults = isolating(act, [1, 2, 3])
    assert results == [1, 3]
    assert [(fault.item, str(fault.error)) for fault in faults] == [(2, "[2]")]


def test_isolating_takes_no_outage_for_an_items_fault() -> None:
    def act(items: Sequence[int]) -> int:
        raise ServiceUnavailable("down")

    with pytest.raises(ServiceUnavailable, match="down"):
        isolating(act, [1, 2])


def test_flag() -> None:
    flag = Flag()
    assert not flag.wait(0.0)
    flag.set()
    assert flag.is_set()
    assert flag.wait(60.0)


def test_first_failure_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    failure = Failure()

    def fail() -> None:
        raise ScriptError("first")

    thread = ServiceThread("part", fail, failure)
    thread.start()
    thread.join()
    failure.report(ServiceUnavailable("second"), "another part")
    assert str(failure.error) == "first"
    first, second = caplog.records
    assert first.exc_info is not None
    assert (second.getMessage(), second.exc_info) == ("another part stopped: second", None)


def test_beat_goes_on_after_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def act() -> None:
        calls.append(1)
        if 2 <= len(calls) <= 4:
            raise ServiceUnavailable("down")

    beat = Beat(act, 0.001, "do it")
    thread = threading.Thread(target=beat.run)
    thread.start()
    eventually(lambda: len(calls) > 6)
    beat.stop()
    thread.join()
    assert [record.getMessage() for record in caplog.records] == ["cannot do it: down", "can do it again"]


def test_every_attempt_at_a_job_has_the_same_seed() -> None:
    job = PromptJob(prompt="hello", temperature=1.0)
    assert sampling_params(job, "a", 100) == sampling_params(job, "a", 100)
    assert sampling_params(job, "a", 100).seed != sampling_params(job, "b", 100).seed
    assert 0 <= sampling_params(job, "a", 100).seed < 2**63
    assert sampling_params(job.model_copy(update={"seed": 7}), "a", 100).seed == 7


def test_flow_needs_no_torch() -> None:
    """All of a worker but its model runs, and is tested, without torch."""
    code = "import sys, worker.running.flow; print({'torch', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
