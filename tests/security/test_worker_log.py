"""A worker's log at its most talkative, through outages of Redis and SQL: no password, and no prompt."""

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from sqlalchemy import Engine, make_url, text

from tests.worker.fakes import ENDLESS, ScriptedRunner, eventually, make_flow, running
from worker.client import submit
from worker.queue.connection import connect
from worker.records import JobState
from worker.sql.database import open_database
from worker.sql.store import JobStore

PASSWORD = "p@ss/w?rd#%:&=+ü"
ESCAPED = quote(PASSWORD, safe="")
WRONG = "another-password"
SIGNS = (PASSWORD, ESCAPED, "p@ss", "w?rd", WRONG)
PROMPT = "the-text-of-the-prompt"


@pytest.fixture
def admin(embedded_data_dir: Path) -> Iterator[redis.Redis]:
    """The session's embedded queue, emptied, with a user for the worker."""
    with closing(connect(None, embedded_data_dir)) as admin:
        admin.flushdb()
        set_password(admin, PASSWORD)
        yield admin
        admin.acl_deluser("tester")
        admin.flushdb()


def set_password(admin: redis.Redis, password: str) -> None:
    """Give the worker's user this password and no other, and hang up on everybody else."""
    admin.acl_setuser(
        "tester",
        enabled=True,
        reset_passwords=True,
        passwords=[f"+{password}"],
        keys="*",
        channels="*",
        commands=["+@all"],
    )
    admin.execute_command("CLIENT", "KILL", "USER", "tester")  # type: ignore[no-untyped-call]


def test_log_of_a_worker_holds_no_secret(
    admin: redis.Redis,
    tmp_path: Path,
    postgresql_server: Engine,
    migrated_postgresql_url: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.functions.rq_draining.OUTAGE_POLL_SECONDS", 0.05)
    caplog.set_level(logging.DEBUG)
    path = admin.connection_pool.connection_kwargs["server"].paths.socket_path
    url = make_url(migrated_postgresql_url).set(password=PASSWORD)
    database = open_database(url.render_as_string(hide_password=False))
    store = JobStore(database)
    runner = ScriptedRunner(step_seconds=0.001)
    with closing(connect(f"unix://tester:{ESCAPED}@{path}", tmp_path)) as connection:
        flow = make_flow(connection, store, runner, beat_seconds=0.05, sweep_seconds=0.05)
        with running(flow) as worker:
            (endless,) = submit(admin, [{"prompt": f"{ENDLESS} {PROMPT}", "max_tokens": 16_000}])
            eventually(lambda: runner.generations[f"{ENDLESS} {PROMPT}"])
            set_password(admin, WRONG)
            eventually(lambda: caplog.text.count("refuses the user name or password") >= 2, "the outage is in the log")
            set_password(admin, PASSWORD)
            with postgresql_server.connect() as server:
                server.execute(
                    text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"),
                    {"name": url.database},
                )
            ids = submit(admin, [PROMPT, {"prompt": PROMPT, "model": "other"}])
            ended = {ids[0]: JobState.DONE, ids[1]: JobState.FAILED}
            eventually(lambda: store.states(ids) == ended)
            assert worker.thread.is_alive()
            worker.stop_at_once()
    database.dispose()
    assert endless
    written = caplog.text + "".join(capfd.readouterr())
    for sign in (*SIGNS, PROMPT):
        assert sign not in written
