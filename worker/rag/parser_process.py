"""The process in which files are parsed that somebody may have made to break whoever reads them.

It reads a header line of JSON and the bytes of a file from standard input, and answers with a line of JSON, again and
again. What it may use is bounded by the kernel: memory in all, and CPU time for each file.
"""

import json
import resource
import sys
from typing import IO, Any

from worker.errors import ConfigurationError
from worker.rag.reading import Format, UnreadableDocument, parse_markup

MIB = 1 << 20


def main(memory_bytes: int, cpu_seconds: int) -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing that a parser prints is an answer
    while header := requests.readline():
        wanted: dict[str, Any] = json.loads(header)
        data = _read(requests, wanted["size"])
        _allow_cpu(cpu_seconds)
        answers.write(json.dumps(_answer(data, wanted)).encode() + b"\n")
        answers.flush()


def _read(requests: IO[bytes], size: int) -> bytes:
    data = requests.read(size)
    if len(data) < size:
        sys.exit("whoever asks has gone")
    return data


def _allow_cpu(seconds: int) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + seconds, hard))


def _answer(data: bytes, wanted: dict[str, Any]) -> dict[str, str]:
    try:
        title, text = parse_markup(data, Format(wanted["form"]), wanted["encoding"])
    except UnreadableDocument as error:
        return {"problem": str(error)}
    except ConfigurationError as error:
        return {"missing": str(error)}
    except MemoryError:
        return {"problem": f"needs more than {resource.getrlimit(resource.RLIMIT_AS)[0] // MIB} MiB to be read"}
    except RecursionError:
        return {"problem": "is nested too deeply to be read"}
    return {"title": title, "text": text}
