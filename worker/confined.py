"""A process of our own for work on what somebody may have made to break whoever does it, or to keep it busy.

What it may use is bounded by the kernel, which no operation of it escapes: memory in all, and processor time for each
piece of work. `worker.confined_side` is the process's side.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 5.0  # for the process to end when it is told to
ANSWER_BYTES = 1 << 20  # read at a time
MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[1]  # where `worker` is imported from
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from importlib import import_module
from worker.confined_side import answer_all
answer_all(import_module(sys.argv[2]).answer, int(sys.argv[3]), float(sys.argv[4]))
"""


class NoAnswer(Exception):
    """The process ended, or was ended, before it had an answer; says why, for people."""


@dataclass
class Confined:
    """The process. It starts with the first piece of work, and again after one that ended it.

    For one thread. It ends when it is closed, or forgotten.
    """

    module: str  # whose `answer` it calls
    memory_bytes: int  # address space of the process, libraries included
    cpu_seconds: float  # for one piece of work
    wall_seconds: float  # for one, on a machine however busy
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _end_process: Callable[[], object] | None = field(default=None, repr=False)  # once

    def ask(self, header: Mapping[str, Any], data: bytes = b"") -> dict[str, Any]:
        """Return the process's answer to `header`, which JSON must hold, and `data`. Raises NoAnswer."""
        if self._process is not None and self._process.poll() is not None:  # ended by somebody while it had no work
            self.close()
        process = self._process = self._process or self._started()
        assert process.stdin is not None, "it was started with a pipe"
        line = json.dumps({"size": len(data), "header": header}).encode()
        try:
            process.stdin.write(line + b"\n" + data)
            process.stdin.flush()
        except BrokenPipeError:
            raise NoAnswer(self._end_of(process)) from None
        answer = self._line_from(process)
        if answer is None:
            raise NoAnswer(self._end_of(process))
        found: dict[str, Any] = json.loads(answer)
        if "out_of_memory" in found:
            raise NoAnswer(f"it needs more than {self.memory_bytes // MIB} MiB")
        return found

    def close(self) -> None:
        """End the process; the next piece of work starts another."""
        self._process = None
        if self._end_process is not None:
            self._end_process()

    def _started(self) -> subprocess.Popen[bytes]:
        # Without the working folder in its path (-P): that may be where the files are.
        limits = str(self.memory_bytes), str(self.cpu_seconds)
        command = [sys.executable, "-P", "-c", PROGRAM, str(ROOT), self.module, *limits]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's ^C is for whoever asks
        )
        self._end_process = weakref.finalize(self, _end, process)
        return process

    def _line_from(self, process: subprocess.Popen[bytes]) -> bytes | None:
        """Return the answer; None where the process ended instead, or took too long."""
        assert process.stdout is not None, "it was started with a pipe"
        deadline = time.monotonic() + self.wall_seconds
        parts: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                part = os.read(process.stdout.fileno(), ANSWER_BYTES)
                if not part:
                    return None
                parts.append(part)
                if part.endswith(b"\n"):
                    return b"".join(parts)
        return None

    def _end_of(self, process: subprocess.Popen[bytes]) -> str:
        """Return why the process gave no answer, for people; it is gone afterwards."""
        try:
            code = process.wait(PATIENCE_SECONDS if process.poll() is None else None)
        except subprocess.TimeoutExpired:
            code = None
        self.close()
        if code is None:
            return f"it took longer than {self.wall_seconds:g} s"
        if code == -signal.SIGPROF:
            return f"it took more than {self.cpu_seconds:g} s of processor time"
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process, which may use {self.memory_bytes // MIB} MiB, ended with {how}"


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None, "it was started with a pipe"
    assert process.stdout is not None, "it was started with a pipe"
    process.kill()
    process.wait()
    with suppress(BrokenPipeError):  # it may not have read all
        process.stdin.close()
    process.stdout.close()
