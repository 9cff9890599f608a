"""Parsing in a process of its own: a file that breaks its parser, or keeps it busy, costs that file and no other."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.errors import ConfigurationError
from worker.rag.reading import Format, UnreadableDocument

MEMORY_BYTES = 2 << 30  # address space of the process, libraries included
CPU_SECONDS = 60  # for one file
WALL_SECONDS = 600.0  # for one file, on a machine however busy
PATIENCE_SECONDS = 5.0  # for the process to end when it is told to
ANSWER_BYTES = 1 << 20  # read at a time
MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]  # where `worker` is imported from
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from worker.rag.parser_process import main
main(int(sys.argv[2]), int(sys.argv[3]))
"""


@dataclass
class Parser:
    """Parses pdf and html files. The process starts with the first of them, and again after one that ended it.

    For one thread. Whoever uses it closes it.
    """

    memory_bytes: int = MEMORY_BYTES
    cpu_seconds: int = CPU_SECONDS
    wall_seconds: float = WALL_SECONDS
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def parse(self, data: bytes, form: Format, encoding: str) -> tuple[str, str]:
        """Return the title, which may be empty, and the text of a file.

        Raises UnreadableDocument for one that has none, or needs more than it may have, and ConfigurationError where a
        package is missing.
        """
        process = self._process = self._process or self._started()
        assert process.stdin is not None, "it was started with a pipe"
        header = {"form": form.value, "encoding": encoding, "size": len(data)}
        try:
            process.stdin.write(json.dumps(header).encode() + b"\n" + data)
            process.stdin.flush()
        except BrokenPipeError:
            raise UnreadableDocument(self._end_of(process)) from None
        line = self._line_from(process)
        if line is None:
            raise UnreadableDocument(self._end_of(process))
        answer: dict[str, Any] = json.loads(line)
        if "missing" in answer:
            raise ConfigurationError(answer["missing"])
        if "problem" in answer:
            raise UnreadableDocument(answer["problem"])
        return answer["title"], answer["text"]

    def close(self) -> None:
        """End the process; the next file starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None, "it was started with a pipe"
        assert process.stdout is not None, "it was started with a pipe"
        process.kill()
        process.wait()
        with suppress(BrokenPipeError):  # it may not have read all
            process.stdin.close()
        process.stdout.close()

    def _started(self) -> subprocess.Popen[bytes]:
        # Without the working folder in its path (-P): that may be where the files are.
        command = [sys.executable, "-P", "-c", PROGRAM, str(ROOT), str(self.memory_bytes), str(self.cpu_seconds)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

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
            return f"cannot be parsed: it took longer than {self.wall_seconds:g} s"
        if code == -signal.SIGXCPU:
            return f"cannot be parsed: it took more than {self.cpu_seconds} s of CPU time"
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"cannot be parsed: the parser, which may use {self.memory_bytes // MIB} MiB, ended with {how}"
