"""A file that results are appended to: of whole lines whatever happens, and of one batch only."""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from worker.batch.line_set import LineSet
from worker.batch.records import line_of
from worker.batch.result_lines import request_id_of
from worker.errors import PagemillError, TryLater

BLOCK_BYTES = 65_536
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class OutputFile:
    """One file of results, locked: two commands do not write the same."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor  # it appends
        self._size = 0  # bytes, all of them whole lines

    def claim(self, batch_id: str) -> LineSet:
        """Return the lines of `batch_id` that are in the file. A last line that is not whole is cut off.

        Raises PagemillError for a file that holds anything else.
        """
        prefix = request_id_of(f"{batch_id}-")
        lines = LineSet()
        with self.path.open("rb") as file:
            self._cut(_whole_bytes(file))
            file.seek(0)
            for number, line in enumerate(file, start=1):
                request_id = _id_of(line)
                if not request_id.startswith(prefix):
                    raise PagemillError(
                        f"{self.path}: line {number} is no result of this batch; give another file, remove this one, "
                        "or write over it with --fresh"
                    )
                lines.add(line_of(request_id))
        return lines

    def clear(self) -> None:
        """Make the file empty."""
        self._cut(0)

    def append(self, lines: Iterable[bytes]) -> None:
        """Write lines at the end. Raises TryLater, and leaves the file as it was, when there is no room for them."""
        data = memoryview(b"".join(lines))
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            self._cut(self._size)
            raise self._failure(error) from None
        self._size += len(data)

    def sync(self) -> None:
        """Have what was written on the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> PagemillError:
        text = f"{self.path}: cannot be written: {error.strerror}"
        if error.errno in NO_ROOM:
            return TryLater(f"{text}; make room and run the same command again")
        return PagemillError(text)

    def _cut(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._size = size


@contextmanager
def opened_output(path: Path) -> Iterator[OutputFile]:
    """Give the file, made if it is not there. Raises PagemillError when it cannot be written, TryLater when another
    command writes it now."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        raise PagemillError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PagemillError(f"{path}: is no regular file, and an interrupted run could not go on with it")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TryLater(f"{path}: another command is writing it") from None
        yield OutputFile(path, descriptor)
    finally:
        os.close(descriptor)


def _whole_bytes(file: IO[bytes]) -> int:
    """Return the size of a file up to the end of its last whole line."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - BLOCK_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _id_of(line: bytes) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    request_id = value.get("id") if isinstance(value, dict) else None
    return request_id if isinstance(request_id, str) else ""
