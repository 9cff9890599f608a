"""Every error reply of Redis and Valkey is one line with the right exit code, as it comes off the wire."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis

from worker.errors import PagemillError, ServiceUnavailable, TryLater
from worker.queue.connection import connect, redis_errors
from worker.queue.job_queue import JobQueue

SECRET = "s3cr3t"


@contextmanager
def refusing_server(path: Path) -> Iterator[list[bytes]]:
    """Serve at `path`: +PONG until the list that is given holds an error, then that error to every command."""
    errors: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while header := self.rfile.readline():
                for _ in range(int(header[1:])):
                    self.rfile.read(int(self.rfile.readline()[1:]) + 2)
                self.wfile.write((errors[0] if errors else b"+PONG") + b"\r\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield errors
        server.shutdown()
        thread.join()


@contextmanager
def refused_connection(folder: Path, reply: bytes) -> Iterator[redis.Redis]:
    """Give a connection to which every command is answered with `reply`."""
    with (
        refusing_server(folder / "server.sock") as errors,
        closing(connect(f"unix://{folder}/server.sock", folder)) as connection,
    ):
        errors.append(reply)
        yield connection


REPLIES: dict[bytes, tuple[type[PagemillError], str]] = {
    b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.": (TryLater, "busy"),
    b"-CLUSTERDOWN Hash slot not served": (TryLater, "lost a part of its cluster"),
    b"-ERR Script killed by user with SCRIPT KILL. script: on @user_script:1.": (TryLater, "told to stop a script"),
    b"-ERR max number of clients reached": (TryLater, "maxclients"),
    b"-EXECABORT Transaction discarded because of previous errors.": (TryLater, "gave up a transaction"),
    b"-LOADING Redis is loading the dataset in memory": (TryLater, "loading"),
    b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": (
        TryLater,
        "lost its primary",
    ),
    b"-MISCONF Redis is configured to save RDB snapshots, but it cannot": (TryLater, "cannot write to its disk"),
    b"-NOREPLICAS Not enough good replicas to write.": (TryLater, "too few replicas"),
    b"-NOSCRIPT No matching script.": (TryLater, "lost its scripts"),
    b"-OOM command not allowed when used memory > 'maxmemory'.": (TryLater, "is full"),
    b"-TRYAGAIN Multiple keys request during rehashing of slot": (TryLater, "moving keys"),
    b"-UNKILLABLE Sorry the script already executed write commands": (TryLater, "busy with a script"),
    b"-CROSSSLOT Keys in request don't hash to the same slot": (ServiceUnavailable, "is a cluster"),
    b"-DENIED Redis is running in protected mode": (ServiceUnavailable, "protected mode"),
    b"-MOVED 3999 127.0.0.1:6381": (ServiceUnavailable, "is a cluster"),
    b"-NOAUTH Authentication required.": (ServiceUnavailable, "asks for a password"),
    b"-NOPROTO unsupported protocol version": (ServiceUnavailable, "protocol"),
    b"-READONLY You can't write against a read only replica.": (ServiceUnavailable, "read-only replica"),
    b"-WRONGPASS invalid username-password pair or user is disabled.": (ServiceUnavailable, "refuses the user name"),
    b"HTTP/1.1 400 Bad Request": (ServiceUnavailable, "another protocol"),
    # The permissions: Redis 7.0's words, then Valkey's.
    b"-NOPERM this user has no permissions to run the 'config|get' command": (ServiceUnavailable, "run CONFIG GET;"),
    b"-NOPERM User s3cr3t has no permissions to run the 'flushall' command": (ServiceUnavailable, "run FLUSHALL;"),
    b"-NOPERM this user has no permissions to access one of the keys used as arguments": (ServiceUnavailable, "a key"),
    b"-NOPERM No permissions to access a channel": (ServiceUnavailable, "a channel"),
    b"-ERR The user executing the script can't run this command or subcommand script: 1f, on @user_script:2.": (
        ServiceUnavailable,
        "does not let this user",
    ),
    b"-ERR ACL failure in script: User s3cr3t has no permissions to run the 'zadd' command script: on @x:2.": (
        ServiceUnavailable,
        "ZADD",
    ),
}


def ping(connection: redis.Redis) -> None:
    with redis_errors("redis://somewhere"):
        connection.ping()


def run_transaction(connection: redis.Redis) -> None:
    with redis_errors("redis://somewhere"), connection.pipeline() as pipeline:
        pipeline.set(SECRET, SECRET)
        pipeline.execute()


def run_pipeline(connection: redis.Redis) -> None:
    with redis_errors("redis://somewhere"), connection.pipeline(transaction=False) as pipeline:
        pipeline.set(SECRET, SECRET)
        pipeline.execute()


def run_script(connection: redis.Redis) -> None:
    JobQueue(connection, "worker-1", lease_seconds=60.0).sweep([SECRET])


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.partition(b" ")[0].decode())
@pytest.mark.parametrize("use", [ping, run_transaction, run_pipeline, run_script])
def test_an_error_reply_is_one_line_with_its_exit_code(
    tmp_path: Path, reply: bytes, use: Callable[[redis.Redis], None]
) -> None:
    error, words = REPLIES[reply]
    with refused_connection(tmp_path, reply) as connection, pytest.raises(error) as caught:
        use(connection)
    message = str(caught.value)
    assert words in message or (use is run_script and "in the script sweep" in message)
    assert "\n" not in message
    assert SECRET not in message
    assert type(caught.value) is error


def test_what_tells_of_another_fault_passes(tmp_path: Path) -> None:
    reply = b"-WRONGTYPE Operation against a key holding the wrong kind of value"
    with refused_connection(tmp_path, reply) as connection, pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        ping(connection)


def test_a_server_that_refuses_the_first_command_is_told_at_once(tmp_path: Path) -> None:
    with refusing_server(tmp_path / "server.sock") as errors:
        errors.append(b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.")
        with pytest.raises(TryLater, match=r"unix://.*lost its primary"):
            connect(f"unix://{tmp_path}/server.sock", tmp_path)
