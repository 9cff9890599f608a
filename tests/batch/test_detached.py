"""Submitting a file under a name that its caller knows, as schedules and services do."""

import io
import json
from pathlib import Path

import pytest
import redis

from worker.batch.detached import submit_file
from worker.batch.lines import RequestRules
from worker.batch.records import BatchState
from worker.batch.running import BatchFailed, Plan
from worker.batch.store import BatchStore
from worker.batch.submitting import Submitter
from worker.errors import PagemillError
from worker.sql.database import open_database
from worker.sql.recording import opened_recorder

BODY = {"messages": [{"role": "user", "content": "Hello"}]}
LINE = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {**BODY, "model": "m"}})


@pytest.fixture
def database(tmp_path: Path, migrated_sqlite_file: Path) -> str:
    (tmp_path / "pagemill.db").write_bytes(migrated_sqlite_file.read_bytes())
    return f"sqlite:///{tmp_path}/pagemill.db"


def test_it_is_submitted_once_however_often_it_is_asked_for(database: str, queue_connection: redis.Redis) -> None:
    engine = open_database(database)
    store = BatchStore(engine)
    rules = RequestRules(served=frozenset({"m"}))
    plan = Plan("file-1", None, "acme", "bulk", rules, None, labels=(("slot", "1"),), batch_id="nightly.2026-03-01")
    with opened_recorder(database) as recorder:
        submitter = Submitter(queue_connection, recorder, store, pytest.fail, 60)
        for _ in range(2):
            status = submit_file(store, submitter, io.BytesIO(LINE.encode()), plan)
            assert (status.batch.batch_id, status.batch.state) == ("nightly.2026-03-01", BatchState.IN_PROGRESS)
            assert (status.counts.total, status.batch.labels) == (1, {"slot": "1"})
        other = Plan("file-1", None, "acme", "bulk", RequestRules(served=frozenset({"n"})), None, batch_id="other")
        with pytest.raises(BatchFailed, match=r"file-1: none of its 1 lines .* line 1: model: 'm' is not served here"):
            submit_file(store, submitter, io.BytesIO(LINE.encode()), other)
    assert queue_connection.llen("rq:queue:bulk") == 1
    failed = store.status("other")
    assert failed is not None
    assert failed.batch.state is BatchState.FAILED
    engine.dispose()


def test_a_file_that_changes_meanwhile_is_noticed(database: str, queue_connection: redis.Redis) -> None:
    engine = open_database(database)
    store = BatchStore(engine)
    plan = Plan("in.jsonl", None, "acme", "bulk", RequestRules(), None)
    file = io.BytesIO(LINE.encode())

    def change(lines: int) -> None:
        file.seek(0)
        file.write(b"x" * len(LINE))

    with opened_recorder(database) as recorder:
        submitter = Submitter(queue_connection, recorder, store, pytest.fail, 60)
        with pytest.raises(PagemillError, match="line 1: the file was changed while it was being submitted"):
            submit_file(store, submitter, file, plan, checked=change)
    assert queue_connection.llen("rq:queue:bulk") == 0
    engine.dispose()
