"""A server that answers with errors, whatever they are, never ends a worker: it waits and goes on."""

from functools import partial

import pytest
import redis

from scripts.fault_table.proxy import Proxy
from tests.worker.fakes import ENDLESS, ScriptedRunner, eventually, make_flow, running
from worker.client import submit
from worker.records import JobState
from worker.sql.store import JobStore

REFUSALS = (
    b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    b"-CLUSTERDOWN The cluster is down",
    b"-CROSSSLOT Keys in request don't hash to the same slot",
    b"-DENIED Redis is running in protected mode",
    b"-ERR max number of clients reached",
    b"-ERR Script killed by user with SCRIPT KILL. script: on @user_script:1.",
    b"-EXECABORT Transaction discarded because of previous errors.",
    b"-LOADING Redis is loading the dataset in memory",
    b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    b"-MISCONF Redis is configured to save RDB snapshots, but it cannot write to its disk",
    b"-MOVED 3999 127.0.0.1:6381",
    b"-NOAUTH Authentication required.",
    b"-NOPERM this user has no permissions to run the 'evalsha' command",
    b"-NOREPLICAS Not enough good replicas to write.",
    b"-NOSCRIPT No matching script. Please use EVAL.",
    b"-OOM command not allowed when used memory > 'maxmemory'.",
    b"-READONLY You can't write against a read only replica.",
    b"-TRYAGAIN Multiple keys request during rehashing of slot",
    b"-UNKILLABLE Sorry the script already executed write commands against the dataset.",
    b"-WRONGPASS invalid username-password pair or user is disabled.",
    b"HTTP/1.1 400 Bad Request",
)
COMMANDS_TO_REFUSE = 12  # of the main loop, the beats, the live thread and the persister together


def all_done(store: JobStore, job_ids: tuple[str, ...]) -> bool:
    return list(store.states(job_ids).values()) == [JobState.DONE] * len(job_ids)


def test_no_error_reply_ends_a_worker(
    connection: redis.Redis,
    proxy: Proxy,
    proxied: redis.Redis,
    sqlite_store: JobStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.functions.rq_draining.OUTAGE_POLL_SECONDS", 0.05)
    monkeypatch.setattr("worker.running.beats.RETRY_SECONDS", 0.05)
    monkeypatch.setattr("worker.running.live.POLL_SECONDS", 0.05)
    runner = ScriptedRunner(step_seconds=0.001)
    (endless,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    flow = make_flow(proxied, sqlite_store, runner, beat_seconds=0.05, sweep_seconds=0.05)
    with running(flow) as worker:
        for number, refusal in enumerate(REFUSALS):
            eventually(lambda: runner.generations[ENDLESS])
            runner.may_step.clear()
            held, waiting = (submit(connection, [f"{number} {name}"])[0] for name in ("held", "waiting"))
            eventually(partial(flow._held.find, held))
            proxy.num_refused, proxy.refuse_with = 0, refusal
            runner.may_step.set()  # what is held ends while nothing can be acknowledged
            eventually(lambda: proxy.num_refused >= COMMANDS_TO_REFUSE)
            assert worker.thread.is_alive(), refusal
            proxy.refuse_with = None
            eventually(partial(all_done, sqlite_store, (held, waiting)), f"{refusal!r} is overcome")
        worker.stop_at_once()
    assert sqlite_store.states([endless])[endless] in (JobState.QUEUED, JobState.DONE)
    assert set(runner.generations.values()) == {1}
    assert connection.keys("pagemill:leases:*") == []
