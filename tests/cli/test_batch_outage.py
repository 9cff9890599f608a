"""`pagemill batch` while SQL is away: it waits, for a bounded time, and goes on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import make_url

from scripts.fault_table.proxy import Proxy, proxying
from tests.cli.batch_files import answering, at_second_chunk, by_custom_id, eventually, request, write_requests
from tests.cli.conftest import CannedWorker, Run
from worker.batch import patience
from worker.cli.batch_context import Watch
from worker.queue.job_queue import JobQueue
from worker.records import Claim
from worker.sql.database import open_database
from worker.sql.store import JobStore

NAMES = [f"n{number}" for number in range(12)]


@pytest.fixture
def proxied(postgresql_url: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy through which the commands reach PostgreSQL."""
    url = make_url(postgresql_url)
    monkeypatch.setattr(patience, "PAUSE_SECONDS", 0.05)
    with proxying((url.host or "127.0.0.1", url.port or 5432), ("127.0.0.1", 0)) as proxy:
        through = url.set(host="127.0.0.1", port=int(proxy.address[1]))
        monkeypatch.setenv("PAGEMILL_DATABASE_URL", through.render_as_string(hide_password=False))
        yield proxy


@pytest.fixture
def near_worker(postgresql_url: str, empty_queue: redis.Redis) -> Iterator[CannedWorker]:
    """A worker whose way to the database is another one."""
    database = open_database(postgresql_url)
    yield CannedWorker(JobQueue(empty_queue, "canned", lease_seconds=60.0), JobStore(database))
    database.dispose()


@contextmanager
def mending(proxy: Proxy) -> Iterator[None]:
    """Mend the proxy once it was called in vain for a few times."""

    def mend() -> None:
        eventually(lambda: proxy.num_hung_up >= 4)
        proxy.mend()

    thread = threading.Thread(target=mend)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_run_waits_and_goes_on_where_it_was(
    run: Run, proxied: Proxy, near_worker: CannedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_requests(tmp_path, *(request(name) for name in NAMES), "nonsense")
    output = tmp_path / "out.jsonl"

    end = CannedWorker.end
    ended: list[Claim] = []

    def end_and_cut(worker: CannedWorker, claim: Claim, *outcome: Any) -> None:
        """End a job. In the middle of them SQL goes away, once some have been written."""
        ended.append(claim)
        if len(ended) == len(NAMES) // 2:
            eventually(lambda: output.exists() and output.read_bytes().count(b"\n") >= 2)
            proxied.cut()
        end(worker, claim, *outcome)

    monkeypatch.setattr(CannedWorker, "end", end_and_cut)
    with mending(proxied), answering(near_worker) as answered:
        result = run("batch", "run", "in.jsonl", "-o", "out.jsonl")
    assert (result.exit_code, sorted(answered)) == (1, sorted(NAMES))
    assert "; this waits for 600 s (--timeout) and then goes on\n" in result.stderr
    assert result.stderr.count("this goes on\n") == 1
    assert by_custom_id(output).keys() == set(NAMES)
    assert (tmp_path / "out.errors.jsonl").read_bytes().count(b"\n") == 1


def test_a_submission_waits_and_goes_on_where_it_was(
    run: Run, proxied: Proxy, near_worker: CannedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_second_chunk(monkeypatch, proxied.cut)
    write_requests(tmp_path, *(request(name) for name in NAMES))
    with mending(proxied), answering(near_worker) as answered:
        result = run("batch", "run", "in.jsonl", "-o", "out.jsonl")
    assert (result.exit_code, sorted(answered)) == (0, sorted(NAMES)), result.stderr
    assert by_custom_id(tmp_path / "out.jsonl").keys() == set(NAMES)


def test_waiting_for_a_batch_ends_when_the_database_stays_away(
    run: Run, proxied: Proxy, near_worker: CannedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_requests(tmp_path, request("a"))
    batch_id = run("batch", "submit", "in.jsonl").stdout.strip()
    monkeypatch.setattr("worker.cli.batch.POLL_SECONDS", 0.02)
    with monkeypatch.context() as patched:
        patched.setattr(Watch, "complaint", lambda watch: proxied.cut())  # while it waits
        given_up = run("batch", "wait", batch_id, "--timeout", "0.2s")
    assert given_up.exit_code == 69
    assert given_up.stderr.endswith("; it was away for 0.2 s (--timeout)\n")
    assert given_up.stderr.count("this waits for 0.2 s (--timeout) and then goes on\n") == 1
    proxied.mend()
    with answering(near_worker):
        assert run("batch", "wait", batch_id).exit_code == 0
