"""Failpoints: what is asked for happens, there and then, and nothing happens unasked."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.fakes import ScriptedRunner, make_flow
from worker.client import submit
from worker.errors import ConfigurationError, ServiceUnavailable, TryLater
from worker.records import AttemptState, JobState
from worker.running.failpoints import EXIT_CODE, Action, FailpointReached, Failpoints, Fault, Point, parse_faults
from worker.settings import resolve_settings
from worker.sql.store import JobStore

MODEL_ONLY = {Action.OOM, Action.NAN}


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    point = draw(st.sampled_from(Point))
    action = draw(st.sampled_from([a for a in Action if point is Point.IN_STEP or a not in MODEL_ONLY]))
    markers = st.from_regex(r"[A-Za-z0-9_-]{1,9}", fullmatch=True)
    marker = draw(markers if action is Action.NAN else st.none() | markers) if point is Point.IN_STEP else None
    first = draw(st.integers(1, 99))
    last = draw(st.none() | st.integers(first, 200))
    seconds = draw(st.floats(0, 99).map(lambda value: round(value, 3))) if action is Action.SLEEP else 0.0
    file = draw(st.from_regex(r"[A-Za-z0-9_.-]{1,9}", fullmatch=True)) if action is Action.WAIT else None
    return Fault(point, action, seconds, marker, first, last, file)


def written(fault: Fault) -> str:
    marker = f"({fault.marker})" if fault.marker else ""
    argument = f":{fault.seconds:.3f}" if fault.action is Action.SLEEP else f":{fault.file}" if fault.file else ""
    return f"{fault.point}{marker}={fault.action}{argument}@{fault.first}-{fault.last or ''}"


@given(st.lists(faults(), max_size=4))
def test_what_is_written_is_read(wanted: list[Fault]) -> None:
    assert list(parse_faults(",".join(map(written, wanted)))) == wanted


def test_short_forms() -> None:
    assert parse_faults("after_claim=kill, before_commit=raise@3") == (
        Fault(Point.AFTER_CLAIM, Action.KILL),
        Fault(Point.BEFORE_COMMIT, Action.RAISE, first=3, last=3),
    )
    assert parse_faults("") == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nowhere=kill", "'nowhere' is none of after_claim, "),
        ("after_claim=explode", "'explode' is none of kill, "),
        ("after_claim", "is not of the form"),
        ("after_claim=sleep", "sleep takes seconds"),
        ("after_claim=sleep:long", "sleep takes seconds"),
        ("after_claim=wait", "wait takes a file's name"),
        ("after_claim=kill:3", "kill takes no argument"),
        ("before_step(bad)=kill", "need the point in_step"),
        ("before_step=oom", "need the point in_step"),
        ("in_step=nan", "needs a marker"),
        ("in_step=raise@0", "times count from 1"),
        ("in_step=raise@3-2", "times count from 1"),
    ],
)
def test_what_cannot_be_is_a_configuration_error(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^failpoints: ") as caught:
        resolve_settings(environ={"PAGEMILL_FAILPOINTS": text})
    assert reason in str(caught.value)


def reached(failpoints: Failpoints, times: int, *markers: str) -> list[int]:
    """Return which of so many times raised, counted from 1."""
    raised = []
    for number in range(1, times + 1):
        try:
            failpoints.reach(Point.IN_STEP, frozenset(markers))
        except FailpointReached:
            raised.append(number)
    return raised


@pytest.mark.parametrize(
    ("text", "times"),
    [("raise", [1, 2, 3, 4, 5]), ("raise@2", [2]), ("raise@2-3", [2, 3]), ("raise@4-", [4, 5])],
)
def test_times_are_counted(text: str, times: list[int]) -> None:
    assert reached(Failpoints(parse_faults(f"in_step={text}")), 5) == times


def test_only_steps_with_the_marker_count() -> None:
    failpoints = Failpoints(parse_faults("in_step(bad)=raise@2"))
    assert reached(failpoints, 3) == []
    assert reached(failpoints, 3, "good") == []
    assert reached(failpoints, 3, "bad", "good") == [2]
    assert failpoints.markers(Point.IN_STEP) == {"bad"}
    failpoints.reach(Point.BEFORE_STEP)


def test_wait_ends_when_the_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failpoints = Failpoints(parse_faults("before_commit=wait:ready@1"))
    waiting = threading.Thread(target=failpoints.reach, args=(Point.BEFORE_COMMIT,))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    (tmp_path / "ready").touch()
    waiting.join()


def test_failpoints_that_nobody_set_do_nothing() -> None:
    for point in Point:
        Failpoints().reach(point)


@pytest.mark.parametrize(("action", "code"), [("kill", -9), ("exit", EXIT_CODE)])
def test_process_ends_there(action: str, code: int) -> None:
    program = (
        "from worker.running.failpoints import Failpoints, Point, parse_faults\n"
        f"Failpoints(parse_faults('after_commit={action}')).reach(Point.AFTER_COMMIT)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == code


AROUND_STEPS = (Point.BEFORE_STEP, Point.IN_STEP, Point.AFTER_STEP)


@pytest.mark.parametrize("point", [point for point in Point if point not in AROUND_STEPS])
def test_service_that_goes_away_there_comes_back(connection: redis.Redis, sqlite_store: JobStore, point: Point) -> None:
    ids = submit(connection, ["one", "two"])
    runner = ScriptedRunner()
    make_flow(connection, sqlite_store, runner, failpoints=f"{point}=unavailable@1-2").run(burst=True)
    assert set(sqlite_store.states(ids).values()) == {JobState.DONE}
    assert len(sqlite_store.results(ids)) == 2


@pytest.mark.parametrize(
    "point",
    [
        *(Point.AFTER_CLAIM, Point.BEFORE_STEP, Point.AFTER_STEP),
        *(Point.BEFORE_COMMIT, Point.AFTER_COMMIT, Point.AFTER_ACKNOWLEDGE),
    ],
)
def test_error_that_nobody_expects_stops_the_worker_in_order(
    connection: redis.Redis, sqlite_store: JobStore, point: Point
) -> None:
    ids = submit(connection, ["one", "two"])
    with pytest.raises(TryLater, match=f"failpoint {point}"):
        make_flow(connection, sqlite_store, failpoints=f"{point}=raise").run(burst=True)
    make_flow(connection, sqlite_store, name="worker-2").run(burst=True)
    assert set(sqlite_store.states(ids).values()) == {JobState.DONE}
    for job_id in ids:
        detail = sqlite_store.job(job_id)
        assert detail is not None
        assert [attempt.state for attempt in detail.attempts].count(AttemptState.DONE) == 1


def test_unavailable_is_what_a_service_that_is_down_raises() -> None:
    with pytest.raises(ServiceUnavailable):
        Failpoints(parse_faults("after_claim=unavailable")).reach(Point.AFTER_CLAIM)


def test_model_actions_are_done_by_who_can() -> None:
    done: list[str] = []
    failpoints = Failpoints(parse_faults("in_step=oom@2"), {Action.OOM: lambda: done.append("oom")})
    for _ in range(3):
        failpoints.reach(Point.IN_STEP)
    assert done == ["oom"]
