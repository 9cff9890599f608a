"""What others may have put into the queue's own keys: it costs at most the job it is about, never the worker."""

import math
from typing import Any

import pytest
import redis

from tests.worker.fakes import ENDLESS, ScriptedRunner, eventually, make_flow, running
from worker.client import ends, submit
from worker.queue.access import QueueAccess
from worker.queue.job_queue import JobQueue
from worker.queue.policy import QueuePolicy
from worker.records import JobState
from worker.sql.store import JobStore

JUNK = (b"", b"x", b"\xff\xfe", b":", b"a:b:c", b"x" * 100_000, b"\0")


def test_junk_in_the_queues_own_sets_ends_no_worker(queue_connection: redis.Redis, sqlite_store: JobStore) -> None:
    connection: Any = queue_connection
    runner = ScriptedRunner(step_seconds=0.001)
    submit(connection, ["orphan"])
    (orphan,) = JobQueue(connection, "dead-worker", lease_seconds=1.0).claim(["default"], 1).claims
    for key in ("pagemill:watched", "pagemill:cancelling", "pagemill:leases:default", "rq:wip:default"):
        connection.zadd(key, dict.fromkeys(JUNK, 0 if "leases" in key else math.inf))
    connection.sadd("rq:worker:worker-1:executions", *JUNK)
    connection.zadd("rq:scheduled:default", dict.fromkeys(JUNK, 1))
    connection.sadd("rq:queues", *JUNK)
    connection.sadd("pagemill:paused", *JUNK)
    connection.rpush("pagemill:suspects:default", *JUNK)
    connection.zadd("pagemill:parked:default", dict.fromkeys(JUNK, 1))
    connection.hset("pagemill:limits", mapping={b"default": b'{"per_minute": 7}', b"\xff": b"{", b"*": b"[]"})
    connection.rpush("pagemill:starts:default", *JUNK)
    with running(make_flow(connection, sqlite_store, runner, beat_seconds=0.05, sweep_seconds=0.05)) as worker:
        (endless,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
        eventually(lambda: runner.generations[ENDLESS])
        ids = submit(connection, ["one", "two"])
        assert {end.state for end in ends(connection, [*ids, orphan.job_id], timeout_seconds=30)} == {JobState.DONE}
        QueueAccess(connection).cancel(endless)
        assert [end.state for end in ends(connection, [endless], timeout_seconds=30)] == [JobState.CANCELLED]
        assert worker.thread.is_alive()
        worker.stop()
    assert connection.zcard("pagemill:leases:default") == 0
    assert [status.tenant for status in QueuePolicy(connection).tenants()]


@pytest.mark.parametrize("write", ["set", "rpush", "xadd"])
def test_stream_that_cannot_be_appended_to_harms_no_other(connection: Any, sqlite_store: JobStore, write: str) -> None:
    runner = ScriptedRunner(step_seconds=0.001)
    access = QueueAccess(connection)
    spoilt, whole = submit(connection, [{"prompt": f"{ENDLESS} {n}", "max_tokens": 1_000} for n in range(2)])
    key = f"pagemill:tokens:{spoilt}"
    {
        "set": lambda: connection.set(key, "?"),
        "rpush": lambda: connection.rpush(key, "?"),
        "xadd": lambda: connection.xadd(key, {"?": b"\xff"}, id=f"{2**64 - 1}-{2**64 - 1}"),
    }[write]()
    for job_id in (spoilt, whole):
        access.watch(job_id, 60.0)
    make_flow(connection, sqlite_store, runner).run(burst=True)
    assert list(sqlite_store.states([spoilt, whole]).values()) == [JobState.DONE] * 2
    text = "".join(event.delta.text for event in access.read_tokens(whole))
    assert text == "0123456789" * 100
    if write == "xadd":
        assert [event.delta.text for event in access.read_tokens(spoilt)] == [""]
