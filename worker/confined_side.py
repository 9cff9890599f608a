"""The side of `worker.confined` that is confined: reads lines of JSON and bytes, answers each with a line of JSON."""

import json
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

Answer = Callable[[Mapping[str, Any], bytes], Mapping[str, Any]]


def answer_all(answer: Answer, memory_bytes: int, cpu_seconds: float) -> None:
    """Answer until standard input ends, or a piece of work takes more than it may.

    SIGPROF, which comes after so much processor time, ends the process wherever it is: nothing here takes it.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing that is printed is an answer
    while line := requests.readline():
        wanted: dict[str, Any] = json.loads(line)
        data = _read(requests, wanted["size"])
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            found = answer(wanted["header"], data)
        except MemoryError:
            found = {"out_of_memory": True}
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        answers.write(json.dumps(found).encode() + b"\n")
        answers.flush()


def _read(requests: IO[bytes], size: int) -> bytes:
    data = requests.read(size)
    if len(data) < size:
        sys.exit("whoever asks has gone")
    return data
