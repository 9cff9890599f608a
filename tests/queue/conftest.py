"""Fixtures of the queue's tests."""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis
from rq import Queue

from worker.queue.connection import connect
from worker.queue.job_queue import JobQueue

Enqueue = Callable[..., list[str]]


@pytest.fixture
def enqueue(queue_connection: redis.Redis) -> Enqueue:
    """Enqueue `count` prompt jobs into `queue` with nothing but RQ; return their ids."""

    def enqueue(count: int = 1, queue: str = "default") -> list[str]:
        target = Queue(queue, connection=queue_connection, serializer="json")
        return [target.enqueue("pagemill.prompt", {"prompt": f"question {number}"}).id for number in range(count)]

    return enqueue


@pytest.fixture
def worker_queue(queue_connection: redis.Redis) -> JobQueue:
    """A worker's view of the queue, with a lease that does not run out within a test."""
    return JobQueue(queue_connection, "worker-1", lease_seconds=60.0)


@pytest.fixture
def other_queue(queue_connection: redis.Redis) -> JobQueue:
    """A second worker's view of the same queue."""
    return JobQueue(queue_connection, "worker-2", lease_seconds=60.0)


@dataclass
class LossyProxy:
    """A server in front of the embedded one that, once told, loses a command or its reply and hangs up."""

    url: str
    lose_commands: list[bytes] = field(default_factory=list)  # each entry loses the first command that holds it
    lose_replies_to: list[bytes] = field(default_factory=list)


def loses(entries: list[bytes], command: bytes) -> bool:
    """Tell whether an entry is part of the command, and use it up."""
    for part in entries:
        if part in command:
            entries.remove(part)
            return True
    return False


@pytest.fixture
def lossy_proxy(embedded_data_dir: Path, tmp_path: Path) -> Iterator[LossyProxy]:
    """A proxy before the emptied embedded queue."""
    with closing(connect(None, embedded_data_dir)) as connection:
        connection.flushdb()
        target = connection.connection_pool.connection_kwargs["server"].paths.socket_path
        path = str(tmp_path / "proxy.sock")
        proxy = LossyProxy(f"unix://{path}")

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.socket(socket.AF_UNIX) as server:
                    server.connect(target)
                    while command := self.request.recv(1 << 20):
                        if loses(proxy.lose_commands, command):
                            return
                        server.sendall(command)
                        reply = server.recv(1 << 20)
                        if loses(proxy.lose_replies_to, command):
                            return
                        self.request.sendall(reply)

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        with Server(path, Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            yield proxy
            server.shutdown()
            thread.join()
