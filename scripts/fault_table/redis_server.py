"""Redis servers of the harness's own: started in a folder, killed, restarted on what they left on the disk."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from worker.queue.embedded import find_server

START_SECONDS = 20.0
DATABASE = 0


def find_servers() -> tuple[Path, ...]:
    """Return the servers of this machine: the embedded queue's, and redis-server where there is one."""
    installed = shutil.which("redis-server")
    return (find_server(), *([Path(installed)] if installed else []))


@dataclass
class RedisServer:
    """A server on a unix socket, with an append-only file that is flushed every second."""

    binary: Path
    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Start it on what is in its folder; return once it answers."""
        self.folder.mkdir(exist_ok=True)
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "loglevel": "warning",
            **self.options,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen([self.binary, *arguments], stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self.process.poll() is None, f"the server did not start: {(self.folder / 'server.log').read_text()}"
            assert time.monotonic() < deadline, f"the server does not answer within {START_SECONDS:g} s"
            time.sleep(0.01)

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self.process is not None, "it was started"
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def connect(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2)

    def append_only_files(self) -> dict[Path, int]:
        """Return the append-only files and their sizes in bytes."""
        return {path: path.stat().st_size for path in self.folder.rglob("*.incr.aof")}

    def _answers(self) -> bool:
        with closing(self.connect()) as connection:
            try:
                return bool(connection.ping())
            except (redis.ConnectionError, redis.ResponseError):
                return False


@contextmanager
def running_server(binary: Path, folder: Path, **options: str) -> Iterator[RedisServer]:
    """Run a server until the block ends. An underscore in an option's name stands for a hyphen."""
    server = RedisServer(binary, folder, {name.replace("_", "-"): value for name, value in options.items()})
    server.start()
    try:
        yield server
    finally:
        server.kill()
