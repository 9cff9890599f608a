"""Worker processes that start fast: forked from a server that has imported the engine already.

Each is a process of its own that runs `pagemill` as the command line would, and ends as the command line would: with an
exit code, or by a signal.
"""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from worker.cli.main import main

POLL_SECONDS = 0.01
KILL_SECONDS = 10.0  # for the system to end what was killed
PRELOADED = ("worker.running.service", "worker.cli.worker")


@dataclass(frozen=True)
class WorkerProcess:
    """A running `pagemill worker`."""

    process: ForkServerProcess
    log: Path
    lock: threading.Lock  # multiprocessing looks after all processes of this one at once, and takes no turns

    @property
    def pid(self) -> int:
        assert self.process.pid is not None, "it was started"
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, a signal's number negated, or None while it runs."""
        with self.lock:
            return self.process.exitcode

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with self.lock:
            if self.process.exitcode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL, whatever it does, and wait for its end."""
        self.signal(signal.SIGKILL)
        self.wait(KILL_SECONDS)

    def wait(self, seconds: float) -> int | None:
        """Return its exit code, or None when it still runs after so many seconds."""
        deadline = time.monotonic() + seconds
        while (code := self.exit_code) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return code

    def log_text(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""


class Nursery:
    """Starts worker processes."""

    def __init__(self) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to come: on tensors this small, more only wait
        self._lock = threading.Lock()
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))

    def start(self, arguments: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path) -> WorkerProcess:
        """Run `pagemill` with these arguments, this environment and this working directory; output goes to `log`."""
        process = self._context.Process(
            target=run_program, args=(list(arguments), dict(environ), folder, log), daemon=True
        )
        with self._lock:
            process.start()
        return WorkerProcess(process, log, self._lock)


def run_program(arguments: list[str], environ: dict[str, str], folder: Path, log: Path) -> None:
    """Be `pagemill`. Runs in the new process."""
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    logging.getLogger().handlers.clear()
    sys.argv = ["pagemill", *arguments]
    main()
