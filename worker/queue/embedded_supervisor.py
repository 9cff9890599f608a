"""Keeps one Valkey server running for exactly as long as some process uses its folder.

`worker.queue.embedded` runs this file by its path in a bare interpreter (`python -I -S`): nothing but the standard
library may be imported here, which keeps a cold start short. Three things hold the promise together:

- every user of the folder holds a shared lock on `clients.lock`; this process ends the server once it gets that lock
  for itself, and keeps it until the server is gone, so that a late client waits and then starts a server of its own;
- `server.lock` is held by this process and, inherited, by the server: two servers never open one data folder, not
  even while a server whose supervisor was killed is still shutting down;
- the server asks the kernel for SIGTERM when this process dies.
"""

import ctypes
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

CLIENTS_LOCK = "clients.lock"
SERVER_LOCK = "server.lock"
SERVER_CONFIG = "server.conf"
SERVER_LOG = "server.log"
READY = "ready"  # what a successful start reports; anything else is the reason of a failure

POLL_SECONDS = 0.5
LINGER_SECONDS = 1.0
LOCK_WAIT_SECONDS = 15.0
STOP_SECONDS = 10.0
FIRST_BACK_OFF_SECONDS = 0.05
LONGEST_BACK_OFF_SECONDS = 5.0
ASK_TIMEOUT_SECONDS = 1.0
PR_SET_PDEATHSIG = 1


class Answer(Enum):
    """What a server behind a unix socket says to PING."""

    ABSENT = "absent"
    BUSY = "busy"  # it listens, but is loading its data or too slow to answer
    READY = "ready"


def ask(socket_path: str) -> Answer:
    """PING the server behind `socket_path`, waiting at most `ASK_TIMEOUT_SECONDS`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ASK_TIMEOUT_SECONDS)
        try:
            connection.connect(socket_path)
        except TimeoutError:
            return Answer.BUSY
        except OSError:
            return Answer.ABSENT
        try:
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64)
        except OSError:
            return Answer.BUSY
    return Answer.READY if reply.startswith(b"+PONG") else Answer.BUSY


def try_lock(descriptor: int, operation: int) -> bool:
    """Take a flock (LOCK_SH or LOCK_EX) without waiting; tell whether it was granted."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_lock(path: Path) -> int:
    """Open a lock file, created 0600, and return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class Supervisor:
    """One server, from its start to its orderly end."""

    def __init__(self, directory: Path, socket_path: str, binary: str) -> None:
        self._directory = directory
        self._socket_path = socket_path
        self._binary = binary
        self._stop_requested = False
        self._idle_since: float | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._wakeup_reader, wakeup_writer = os.pipe()
        os.set_blocking(wakeup_writer, False)
        os.set_blocking(self._wakeup_reader, False)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # its only use is to end a wait
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._request_stop)

    def run(self, report: Callable[[str], None]) -> None:
        """Serve until no client is left or SIGTERM comes; `report` hears once how the start went."""
        server_lock = open_lock(self._directory / SERVER_LOCK)
        if not self._become_the_only_one(server_lock):
            ready = ask(self._socket_path) is Answer.READY
            report(READY if ready else "another process holds its lock and does not answer")
            return
        clients_lock = open_lock(self._directory / CLIENTS_LOCK)
        failure = self._start(server_lock)
        report(failure or READY)
        if failure is None:
            self._watch(server_lock, clients_lock)
        self._stop_server()
        os.close(server_lock)
        os.close(clients_lock)

    def _become_the_only_one(self, server_lock: int) -> bool:
        """Take the server's lock, or give up once another server answers (or never does)."""
        deadline = time.monotonic() + LOCK_WAIT_SECONDS
        while not try_lock(server_lock, fcntl.LOCK_EX):
            if self._stop_requested or time.monotonic() > deadline or ask(self._socket_path) is Answer.READY:
                return False
            self._wait(0.02)
        return True

    def _start(self, server_lock: int) -> str | None:
        """Start the server and wait until it answers; return None, or the reason why it does not."""
        self._server = subprocess.Popen(
            [self._binary, str(self._directory / SERVER_CONFIG)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            stderr=sys.stderr,
            pass_fds=(server_lock,),
            preexec_fn=follow_parent(),
        )
        pause = 0.002
        while ask(self._socket_path) is not Answer.READY:
            if self._server.poll() is not None:
                return f"the server ended with status {self._server.returncode}"
            if self._stop_requested:
                return "it was told to stop"
            self._wait(pause)
            pause = min(pause * 1.5, 0.05)
        return None

    def _watch(self, server_lock: int, clients_lock: int) -> None:
        """Restart a server that dies, with back-off, until a stop is due."""
        started, back_off = time.monotonic(), FIRST_BACK_OFF_SECONDS
        while not self._clients_are_gone(clients_lock):
            self._wait(POLL_SECONDS)
            if self._stop_requested:
                return
            if self._server is None or self._server.poll() is None:
                continue
            print(f"supervisor: the server ended with status {self._server.returncode}", file=sys.stderr, flush=True)
            if time.monotonic() - started > LONGEST_BACK_OFF_SECONDS:
                back_off = FIRST_BACK_OFF_SECONDS
            self._wait(back_off)
            back_off = min(back_off * 2, LONGEST_BACK_OFF_SECONDS)
            started = time.monotonic()
            self._start(server_lock)

    def _clients_are_gone(self, clients_lock: int) -> bool:
        """Tell whether nobody has used the folder for `LINGER_SECONDS`; if so, keep newcomers waiting from here on."""
        if not try_lock(clients_lock, fcntl.LOCK_EX):
            self._idle_since = None
            return False
        now = time.monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        if now - self._idle_since >= LINGER_SECONDS:
            return True
        fcntl.flock(clients_lock, fcntl.LOCK_UN)
        return False

    def _stop_server(self) -> None:
        if self._server is None or self._server.poll() is not None:
            return
        self._server.terminate()
        try:
            self._server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def _request_stop(self, _number: int, _frame: object) -> None:
        self._stop_requested = True

    def _wait(self, seconds: float) -> None:
        """Sleep, but wake up at once for a signal: a stop, or the server's death."""
        readable, _, _ = select.select([self._wakeup_reader], [], [], max(seconds, 0.0))
        if readable:
            os.read(self._wakeup_reader, 1024)


def follow_parent() -> Callable[[], None]:
    """Return the function that, in the forked child, ties its life to this process."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def follow() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before the kernel was asked
                os._exit(1)

    return follow


def main(arguments: list[str]) -> None:
    """Detach from the caller, then supervise. Standard output is the caller's pipe: one report, then it is closed."""
    directory, socket_path, binary = arguments
    if os.fork():
        os._exit(0)  # the caller reaps this process now; the supervisor is nobody's child

    def report(text: str) -> None:
        os.write(1, text.encode())
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)

    os.umask(0o077)
    os.chdir("/")
    Supervisor(Path(directory), socket_path, binary).run(report)


if __name__ == "__main__":
    main(sys.argv[1:])
