"""The worker's parent process: it starts the worker, hands signals on, and starts it again when it died.

It loads neither torch nor a model. The worker is a new process each time, never a fork of one that has used a device,
and is told to stop when its parent dies.
"""

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from worker.errors import ExitCode
from worker.queue.embedded_supervisor import follow_parent
from worker.running.crash_journal import note_end
from worker.running.threads import Flag

# What a start again would not change. Besides TRY_LATER the others are those of processes that broke down.
FINAL = frozenset({ExitCode.OK, ExitCode.USAGE, ExitCode.UNAVAILABLE, ExitCode.CONFIGURATION})
HEALTHY_SECONDS = 60.0  # a worker that ran for so long begins with a clean slate
FIRST_PAUSE_SECONDS = 1.0  # before the second start again in a row; there is none before the first
LONGEST_PAUSE_SECONDS = 60.0
SIGNAL_EXIT = 128  # plus the signal's number: how a shell reports a process that a signal ended

logger = logging.getLogger(__name__)


class Pauses:
    """How long to wait before each start."""

    def __init__(self) -> None:
        self._next = 0.0

    def after(self, ran_seconds: float) -> float:
        """Return the seconds to wait after a worker that ran for `ran_seconds` died: 0, 1, 2, 4 ... 60."""
        if ran_seconds >= HEALTHY_SECONDS:
            self._next = 0.0
        pause = self._next
        self._next = min(2 * pause, LONGEST_PAUSE_SECONDS) if pause else FIRST_PAUSE_SECONDS
        return pause


class Supervisor:
    """Runs one worker after the other. On the main thread."""

    def __init__(self, command: Sequence[str], data_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`command` runs a worker; `data_dir` is where it leaves its crash journal."""
        self._command = list(command)
        self._data_dir = data_dir
        self._clock = clock
        self._stopping = Flag()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Return the exit code for this process, once a worker ended in order or for a reason that will not pass.

        SIGTERM and SIGINT go to the worker, each time; it is not started again then.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        pauses = Pauses()
        while not self._stopping.is_set():
            started = self._clock()
            code = self._run_worker()
            if self._stopping.is_set() or code in FINAL:
                return _exit_code(code)
            pause = pauses.after(self._clock() - started)
            logger.error("the worker ended with %s; it starts again in %g s", _name_of(code), pause)
            self._stopping.wait(pause)
        return ExitCode.OK

    def _run_worker(self) -> int:
        """Return the worker's exit status; a negative one is the signal that ended it."""
        # In a session of its own: the terminal's Ctrl-C comes here only, and is handed on once.
        with subprocess.Popen(self._command, start_new_session=True, preexec_fn=follow_parent()) as child:
            self._child = child
            if self._stopping.is_set():  # the signal came before there was somebody to hand it to
                child.terminate()
            code = child.wait()
        if code < 0:
            note_end(self._data_dir, child.pid, -code)
        return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()


def _exit_code(code: int) -> int:
    """Return what a shell would. A worker that was told to stop before it listened has nothing to give back."""
    if code in (-signal.SIGTERM, -signal.SIGINT):
        return ExitCode.OK
    return code if code >= 0 else SIGNAL_EXIT - code


def _name_of(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    names = {number.value: number.name for number in signal.Signals}  # not of every real-time signal
    return names.get(-code, f"signal {-code}")
