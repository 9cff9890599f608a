"""Functions for the workers of the tests, and what they import: `getcwd` is no function of theirs."""

import os
import threading
import time
from os import getcwd
from typing import Any

import redis
from rq import Retry, get_current_job
from rq.job import Job

__all__ = ["getcwd"]

WAIT_SECONDS = 30.0
may_go_on = threading.Event()
begun: list[str] = []  # ids of jobs, as their functions began


def add(one: int, other: int = 0) -> int:
    """Return the sum."""
    return one + other


def fail(message: str) -> None:
    """Raise."""
    raise ValueError(message)


def wait(value: str = "done") -> str:
    """Return when the test says so, or when interrupted."""
    begun.append(current_job().id)
    deadline = time.monotonic() + WAIT_SECONDS
    while not may_go_on.wait(0.01):
        assert time.monotonic() < deadline, "the test forgot the function"
    return value


def wait_and_fail() -> None:
    """Raise when the test says so."""
    raise ValueError(wait())


def hang(seconds: float) -> str:
    """Sleep in C, where no exception arrives."""
    begun.append(current_job().id)
    time.sleep(seconds)
    return "woken"


def catch_time_out() -> str:
    """Run until the time is up, and return all the same."""
    try:
        while True:
            time.sleep(0.01)
    except Exception as error:
        return str(error)


def ask_for_retry() -> Retry | str:
    """Ask RQ to be run again, once."""
    job = current_job()
    return "second" if job.number_of_retries else Retry(max=2)


def note_in_meta() -> str:
    """Leave something in the job's meta."""
    job = current_job()
    job.meta["seen"] = True
    job.save_meta()
    return job.id


def note_success(job: Job, connection: redis.Redis, result: Any) -> None:
    """A callback of a job that succeeded."""
    connection.set(f"success:{job.id}", str(result))


def read_own_status(job: Job, connection: redis.Redis, result: Any) -> None:
    """A callback that reads, on the worker's connection."""
    assert job.get_status(refresh=True)


def note_failure(job: Job, connection: redis.Redis, kind: Any, error: Any, traceback: Any) -> None:
    """A callback of a job that failed."""
    connection.set(f"failure:{job.id}", f"{kind.__name__}: {error}")


def note_stop(job: Job, connection: redis.Redis) -> None:
    """A callback of a job that was stopped."""
    connection.set(f"stopped:{job.id}", "yes")


def report_pid() -> int:
    """Say where this runs, until told to go on. Returns how often it was begun."""
    job = current_job()
    count = job.connection.rpush(f"pids:{job.id}", os.getpid())
    deadline = time.monotonic() + WAIT_SECONDS
    while not job.connection.exists(f"go:{job.id}"):
        assert time.monotonic() < deadline, "the test forgot the function"
        time.sleep(0.01)
    return int(count)


def current_job() -> Job:
    """Return the job whose function this is."""
    job = get_current_job()
    assert job is not None
    return job
