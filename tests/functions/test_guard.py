"""Exceptions from outside reach a function in its thread, and nothing else that the thread does."""

import threading
import time
from collections.abc import Callable

import pytest
from rq.timeouts import JobTimeoutException

from tests.worker.fakes import eventually
from worker.functions import guard as guard_module
from worker.functions.guard import Abandoned, Guard, ThreadDeathPenalty

WAIT_SECONDS = 30.0


def spin() -> None:
    """Run Python code until interrupted."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.001)
    pytest.fail("nothing was raised")


class Thread:
    """Runs something, and keeps what it raised."""

    def __init__(self, body: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._body = body
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as error:
            self.error = error

    def end(self) -> BaseException | None:
        """Wait for the thread's end. Returns what it raised."""
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        return self.error


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Time-outs that had no effect; they are not given long."""
    monkeypatch.setattr(guard_module, "GRACE_SECONDS", 0.05)
    return []


def test_time_out_ends_the_region(stuck: list[BaseException]) -> None:
    guard = Guard(stuck.append)

    def body() -> None:
        with guard.limit(0.01, JobTimeoutException, job_id="x"):
            spin()

    error = Thread(body).end()
    assert isinstance(error, JobTimeoutException)
    assert str(error) == "Task exceeded maximum timeout value (0.01 seconds)"
    assert (type(error).__module__, type(error).__qualname__) == ("rq.timeouts", "JobTimeoutException")
    assert not stuck


def test_each_time_out_has_its_own_message() -> None:
    """RQ's own class for threads writes the latest one's into all."""
    limits = [Guard(lambda error: None).limit(seconds, JobTimeoutException) for seconds in (1, 2)]
    assert [str(limit._exception()) for limit in limits] == [
        f"Task exceeded maximum timeout value ({seconds} seconds)" for seconds in (1, 2)
    ]
    assert str(JobTimeoutException("plain")) == "plain"


def test_hanging_thread_is_given_up(stuck: list[BaseException]) -> None:
    guard = Guard(stuck.append)
    may_go_on = threading.Lock()
    may_go_on.acquire()

    def body() -> None:
        with guard.limit(0.01, JobTimeoutException):
            may_go_on.acquire()  # in C, where no exception arrives

    thread = Thread(body)
    eventually(lambda: stuck)
    assert guard.is_abandoned
    may_go_on.release()
    assert isinstance(thread.end(), Abandoned | JobTimeoutException)
    assert not guard.abandon(), "it was somebody's already"


def test_abandoned_function_is_interrupted_and_nobody_elses_any_more(stuck: list[BaseException]) -> None:
    guard = Guard(stuck.append)
    inside = threading.Event()

    def body() -> None:
        with guard.limit(-1, JobTimeoutException):
            inside.set()
            spin()

    thread = Thread(body)
    assert inside.wait(WAIT_SECONDS)
    assert guard.abandon()
    assert not guard.abandon()
    assert isinstance(thread.end(), Abandoned)
    with pytest.raises(Abandoned), guard.limit(-1, JobTimeoutException):
        pytest.fail("the region was entered")


def test_function_that_returned_cannot_be_taken_away(stuck: list[BaseException]) -> None:
    guard = Guard(stuck.append)
    with guard.limit(-1, JobTimeoutException):
        assert guard._is_open
    assert not guard.abandon()
    with guard.limit(-1, JobTimeoutException):  # a callback's
        pass
    assert not guard.abandon()


def test_function_that_waits_for_its_thread_can(stuck: list[BaseException]) -> None:
    guard = Guard(stuck.append)
    assert guard.abandon()
    assert not guard.begin()
    assert not guard.has_begun


def test_nothing_is_raised_outside_of_regions(stuck: list[BaseException]) -> None:
    """Regions as short as their time-outs: whichever comes first, the code behind them is never interrupted."""
    guard = Guard(stuck.append)
    ended = 0

    def body() -> None:
        nonlocal ended
        for round_number in range(300):
            try:
                with guard.limit(0.0005, JobTimeoutException):
                    time.sleep(0.00001 * (round_number % 100))
            except JobTimeoutException:
                guard.settle()
            for _ in range(200):  # the code behind: an exception here would end the thread
                pass
            ended += 1

    assert Thread(body).end() is None
    assert ended == 300
    assert not stuck


def test_death_penalty_for_threads() -> None:
    def body() -> None:
        with ThreadDeathPenalty(0.01, JobTimeoutException, job_id="x"):
            spin()

    assert isinstance(Thread(body).end(), JobTimeoutException)
    with ThreadDeathPenalty(-1, JobTimeoutException):
        pass
