"""The users of docs/security.md can do what they need and nothing else, on Redis and on Valkey."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner
from rq import Queue, Worker
from rq.command import send_shutdown_command, send_stop_job_command
from rq.job import Job

from tests.security.acl import AclServer, acl_server, documented_users
from tests.servers import SERVERS
from tests.worker.fakes import ENDLESS, ScriptedRunner, eventually, make_flow, running
from worker.cli.main import cli
from worker.client import ends, submit
from worker.errors import ExitCode, ServiceUnavailable
from worker.queue.access import CancelOutcome, QueueAccess
from worker.queue.connection import redis_errors
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.queue.policy import QueuePolicy
from worker.queue.redis_jobs import find_redis_job, find_redis_states, queue_names
from worker.reconciling import RealRepairs, Reconciler
from worker.records import AttemptState, JobState
from worker.sql.store import JobStore

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = "import sys; from worker.cli.main import main; main()"


@pytest.fixture(scope="module", params=SERVERS)
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclServer]:
    with acl_server(request.param, tmp_path_factory.mktemp("acl")) as server:
        yield server


@pytest.fixture
def server(shared_server: AclServer) -> AclServer:
    """A server without jobs, whose users have their documented rights."""
    shared_server.reset()
    return shared_server


def test_whole_flow_needs_no_more_than_is_documented(server: AclServer, sqlite_store: JobStore) -> None:
    with server.connected("worker") as connection, server.connected("producer") as producer:
        runner = ScriptedRunner(step_seconds=0.001)
        flow = make_flow(connection, sqlite_store, runner, beat_seconds=0.05, sweep_seconds=0.05, drain_seconds=0.0)
        with running(flow) as worker:
            produce(producer)
            server.admin.hset("rq:job:spoilt", mapping={"status": "queued", "data": "?"})
            server.admin.set("rq:job:no-hash", "?")
            server.admin.rpush("rq:queue:default", "spoilt", "no-hash")
            eventually(
                lambda: (
                    sqlite_store.states(["spoilt", "no-hash"]) == dict.fromkeys(["spoilt", "no-hash"], JobState.DEAD)
                )
            )
            stop_through_rq(connection, producer, sqlite_store, runner)
            flow.worker.run_maintenance_tasks()  # type: ignore[no-untyped-call]
            Reconciler(sqlite_store, connection, RealRepairs(sqlite_store, connection, 60)).run(print, lambda: False)
            lapse(server, producer, sqlite_store, runner)
            send_shutdown_command(connection, flow.worker.name)
            worker.wait()
        assert QueueAccess(connection).depth(["default"]) == {"default": 1}  # it was handed back
    assert server.refusals() == set()


def produce(producer: redis.Redis) -> None:
    """Submit jobs in all ways there are, and follow them to their ends, while a worker runs."""
    access = QueueAccess(producer)
    ids = submit(producer, ["one", "two", {"prompt": "three", "model": "other"}])
    assert [end.state for end in ends(producer, ids, timeout_seconds=30)].count(JobState.FAILED) == 1
    rq_ids = enqueue_with_rq(producer)
    assert [end.state for end in ends(producer, rq_ids, timeout_seconds=30)] == [JobState.DONE] * len(rq_ids)
    assert Job.fetch(rq_ids[0], connection=producer, serializer="json").return_value() is not None
    (running_id,) = submit(producer, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    access.watch(running_id, 30.0)
    eventually(lambda: access.read_tokens(running_id))
    assert access.cancel(running_id).outcome is CancelOutcome.CANCELLING
    assert [end.state for end in ends(producer, [running_id], timeout_seconds=30)] == [JobState.CANCELLED]
    cancel_waiting(producer)


def enqueue_with_rq(producer: redis.Redis) -> list[str]:
    """Enqueue with nothing but RQ; return the jobs' ids."""
    queue = Queue("default", connection=producer, serializer="json")
    first = queue.enqueue("pagemill.prompt", {"prompt": "first"}, result_ttl=60)
    second = queue.enqueue("pagemill.prompt", {"prompt": "second"}, depends_on=first)
    at_front = queue.enqueue("pagemill.prompt", {"prompt": "third"}, at_front=True, ttl=600)
    many = queue.enqueue_many([Queue.prepare_data("pagemill.prompt", ({"prompt": str(n)},)) for n in range(2)])
    return [first.id, second.id, at_front.id, *(job.id for job in many)]


def cancel_waiting(producer: redis.Redis) -> None:
    """Cancel a job that waits in its queue, and one that RQ holds back until another has ended."""
    access = QueueAccess(producer)
    (waiting_id,) = submit(producer, ["waits"], queue="nobody")
    nobody = Queue("nobody", connection=producer, serializer="json")
    deferred = nobody.enqueue("pagemill.prompt", {"prompt": "x"}, depends_on=waiting_id)
    kept = nobody.enqueue("pagemill.prompt", {"prompt": "y"}, failure_ttl=-1)
    assert access.cancel(deferred.id).outcome is CancelOutcome.CANCELLED_WAITING
    assert access.cancel(waiting_id).outcome is CancelOutcome.CANCELLED_WAITING
    assert access.cancel(kept.id).outcome is CancelOutcome.CANCELLED_WAITING
    assert find_redis_job(producer, waiting_id) is not None


def stop_through_rq(connection: redis.Redis, producer: redis.Redis, store: JobStore, runner: ScriptedRunner) -> None:
    """RQ's own command to stop a job reaches the worker; producers may not send it."""
    (job_id,) = submit(producer, [{"prompt": f"{ENDLESS} to stop", "max_tokens": 16_000}])
    eventually(lambda: runner.generations[f"{ENDLESS} to stop"])
    send_stop_job_command(connection, job_id, serializer="json")
    eventually(lambda: store.states([job_id])[job_id] is JobState.CANCELLED)


def lapse(server: AclServer, producer: redis.Redis, store: JobStore, runner: ScriptedRunner) -> None:
    """Let a lease run out: the sweep finds the job, and it is claimed again."""
    (job_id,) = submit(producer, [{"prompt": f"{ENDLESS} to lapse", "max_tokens": 16_000}])
    eventually(lambda: runner.generations[f"{ENDLESS} to lapse"])
    member = eventually_one(lambda: server.admin.zrange("pagemill:leases:default", 0, -1))
    server.admin.zrem("rq:wip:default", member)
    server.admin.hset(f"rq:job:{job_id}", "status", "queued")
    server.admin.lpush("rq:queue:default", job_id)
    eventually(lambda: runner.generations[f"{ENDLESS} to lapse"] == 2)


def eventually_one(read: Callable[[], list[str]]) -> str:
    eventually(read)
    (one,) = read()
    return one


def report(server: AclServer) -> None:
    """Do all that a reporter does."""
    server.admin.script_flush()
    with server.connected("reporter") as connection:
        connection.execute_command("SELECT", 0)  # type: ignore[no-untyped-call]  # as for a URL with a database's number
        access = QueueAccess(connection)
        assert access.counts(["default"])["default"].finished == 1
        assert access.depth(["default"]) == {"default": 1}
        assert queue_names(connection) == ("default",)
        (job_id,) = Queue("default", connection=connection).finished_job_registry.get_job_ids(cleanup=False)
        assert find_redis_states(connection, [job_id]) == {job_id: JobState.DONE}
        assert find_redis_job(connection, job_id) is not None
        assert [end.state for end in ends(connection, [job_id])] == [JobState.DONE]
        access.read_tokens(job_id)
        policy = QueuePolicy(connection)
        assert (policy.tenants(), policy.paused(), policy.parked(["default"])) == ((), frozenset(), {"default": 0})
        assert Job.fetch(job_id, connection=connection, serializer="json").return_value() is not None
        assert Worker.all(connection=connection) == []
        for queue in Queue.all(connection=connection, serializer="json"):
            assert len(queue.get_jobs()) == queue.count == 1
            assert queue.failed_job_registry.get_job_count(cleanup=False) == 0
            assert queue.get_job_position(queue.get_job_ids()[0]) == 0


@pytest.fixture
def reported_server(server: AclServer, sqlite_store: JobStore) -> AclServer:
    """A server with one job that is done and one that waits."""
    with server.connected("worker") as connection:
        submit(connection, ["done"])
        make_flow(connection, sqlite_store).run(burst=True)
        submit(connection, ["waits"])
    server.refusals()
    return server


def test_reporter_sees_everything(reported_server: AclServer, sqlite_file: Path) -> None:
    report(reported_server)
    done = run_command(sqlite_file.parent, "status", "--redis-url", reported_server.url("reporter"), "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    assert '"waiting": 1' in done.stdout
    assert reported_server.refusals() == set()


def run_command(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours with its data in `data_dir`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments, "--data-dir", str(data_dir)],
        env={**inherited, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


OPERATIONS: tuple[tuple[str, ...], ...] = (
    *(("pause", "default"), ("resume", "default"), ("tenant", "limit", "acme", "--max-running", "2")),
    *(("tenant", "list"), ("tenant", "clear", "acme"), ("status",), ("doctor",), ("reconcile",)),
)


def test_operator_does_with_the_workers_rights(
    reported_server: AclServer, sqlite_file: Path, sqlite_store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PAGEMILL_")]:
        monkeypatch.delenv(name)
    job_ids = sorted(sqlite_store.states(reported_server.job_ids()))
    options = ("--redis-url", reported_server.url("worker"), "--data-dir", str(sqlite_file.parent))
    for arguments in (*OPERATIONS, ("show", *job_ids), ("cancel", *job_ids), ("retry", *job_ids)):
        done = CliRunner().invoke(cli, [*arguments, *options], prog_name="pagemill")
        assert done.exception is None or isinstance(done.exception, SystemExit), arguments
        assert "error" not in done.stderr, (arguments, done.stderr)
    assert reported_server.refusals() == set()


def use_as_producer(server: AclServer) -> None:
    """Do what a producer does, without a worker: what one would have done is there before."""
    (held_id,) = submit(server.bytes_admin, ["held"], queue="held")
    (claim,) = JobQueue(server.bytes_admin, "w", lease_seconds=60.0).claim(["held"], 1).claims
    (done_id,) = submit(server.bytes_admin, ["done"], queue="held")
    queue = JobQueue(server.bytes_admin, "w", lease_seconds=60.0)
    queue.acknowledge([Acknowledgement(queue.claim(["held"], 1).claims[0], AttemptState.DONE, {"text": "x"})])
    server.admin.script_flush()
    server.refusals()
    with server.connected("producer") as producer:
        producer.execute_command("SELECT", 0)  # type: ignore[no-untyped-call]  # as for a URL with a database's number
        with producer.pipeline() as pipeline:
            pipeline.watch("rq:job:x")  # type: ignore[no-untyped-call]  # left without a transaction, as RQ does when something fails
        access = QueueAccess(producer)
        submit(producer, ["new"])
        assert not QueuePolicy(producer).is_paused("default")
        enqueue_with_rq(producer)
        assert [end.state for end in ends(producer, [done_id])] == [JobState.DONE]
        assert Job.fetch(done_id, connection=producer, serializer="json").return_value() == {"text": "x"}
        access.watch(claim.job_id, 30.0)
        access.read_tokens(claim.job_id)
        assert access.cancel(held_id).outcome is CancelOutcome.CANCELLING
        cancel_waiting(producer)


# redis-py leaves a connection open when the server refuses it the UNWATCH at the end of a pipeline.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("user", ["producer", "reporter"])
def test_every_documented_command_is_needed(reported_server: AclServer, user: str) -> None:
    server = reported_server
    use = {"producer": use_as_producer, "reporter": report}[user]
    use(server)
    assert server.refusals() == set()
    unneeded = []
    for right in documented_users()[user].split():
        if right.startswith("+") and not right.startswith("+@"):
            server.admin.execute_command("ACL", "SETUSER", user, f"-{right[1:]}")
            with suppress(ServiceUnavailable, redis.RedisError):
                use(server)
            if not server.refusals():
                unneeded.append(right)
            server.admin.execute_command("ACL", "SETUSER", user, right)
    assert unneeded == []


OUTSIDE: tuple[tuple[str, ...], ...] = (
    *(("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("RANDOMKEY",), ("SWAPDB", "0", "1"), ("SHUTDOWN",)),
    *(("CONFIG", "GET", "*"), ("CONFIG", "SET", "dir", "/"), ("ACL", "LIST"), ("ACL", "WHOAMI"), ("MONITOR",)),
    *(("LATENCY", "LATEST"), ("SAVE",), ("BGREWRITEAOF",), ("REPLICAOF", "NO", "ONE"), ("MODULE", "LIST")),
    *(("CLIENT", "LIST"), ("CLIENT", "KILL", "ID", "1"), ("SCRIPT", "FLUSH"), ("FUNCTION", "LIST"), ("SLOWLOG", "GET")),
    *(
        ("EVAL", "return 1", "0"),
        ("MIGRATE", "h", "1", "rq:x", "0", "1"),
        ("SORT", "rq:x"),
        ("RESTORE", "rq:x", "0", ""),
    ),
    *(
        ("SET", "other", "1"),
        ("GET", "other"),
        ("HSET", "other", "x", "1"),
        ("DEL", "other"),
        ("PUBLISH", "other", "x"),
    ),
    *(("COPY", "rq:x", "other"), ("RENAME", "rq:x", "other"), ("SUBSCRIBE", "other"), ("MOVE", "rq:x", "1")),
)
OUTSIDE_OF: dict[str, tuple[tuple[str, ...], ...]] = {
    "worker": (),
    "producer": (("PUBLISH", "rq:pubsub:w", "{}"), ("LPOP", "rq:queue:default"), ("SCAN", "0")),
    "reporter": (
        ("HSET", "rq:x", "a", "b"),
        ("DEL", "rq:x"),
        ("PUBLISH", "rq:pubsub:w", "x"),
    ),
}


@pytest.mark.parametrize("user", OUTSIDE_OF)
def test_everything_else_is_refused_in_one_line(server: AclServer, user: str) -> None:
    with server.connected(user) as connection:
        for command in (*OUTSIDE, *OUTSIDE_OF[user]):
            with pytest.raises(ServiceUnavailable) as caught, redis_errors():
                connection.execute_command(*command)  # type: ignore[no-untyped-call]
            assert "does not let this user" in str(caught.value), command
            assert "\n" not in str(caught.value)


def test_worker_whose_rights_do_not_suffice_claims_nothing(server: AclServer, sqlite_store: JobStore) -> None:
    submit(server.bytes_admin, ["one"])
    server.admin.execute_command("ACL", "SETUSER", "worker", "-zadd", "-memory|usage")
    with server.connected("worker") as connection:
        with pytest.raises(ServiceUnavailable, match=r"run MEMORY USAGE, ZADD on the queue.s keys; its ACL") as caught:
            make_flow(connection, sqlite_store).run(burst=True)
        assert caught.value.exit_code is ExitCode.UNAVAILABLE
    assert server.admin.llen("rq:queue:default") == 1
    assert server.refusals() == set()


def test_script_that_is_refused_names_its_command(server: AclServer) -> None:
    (job_id,) = submit(server.bytes_admin, ["one"])
    server.admin.execute_command("ACL", "SETUSER", "producer", "-lrem")
    with (
        server.connected("producer") as producer,
        pytest.raises(ServiceUnavailable, match="run LLEN or LREM in the script cancel"),
    ):
        QueueAccess(producer).cancel(job_id)


def test_command_line_says_what_was_refused(server: AclServer, tmp_path: Path) -> None:
    done = run_command(tmp_path, "submit", "x", "--redis-url", server.url("reporter"))
    assert done.returncode == ExitCode.UNAVAILABLE
    assert done.stderr.startswith("error: ")
    assert "does not let this user run SADD in the script enqueue" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "reporter-password" not in done.stderr
