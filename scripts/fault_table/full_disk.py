"""A small disk of its own that can be full; where nobody may mount one, a limit on the size of a process's files."""

import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SIZE_BYTES = 160 * 1024**2  # a worker is unwell where less than 64 MiB are left
CHUNK_BYTES = 65_536


class Disk(Protocol):
    """Where a process may find no room for what it writes."""

    folder: Path
    kind: str  # for the report

    @contextmanager
    def filled(self, pid: int) -> Iterator[None]:
        """Leave the process no room until the block ends."""
        yield


@dataclass
class MountedDisk:
    """A file system of `SIZE_BYTES`."""

    folder: Path
    kind: str = "a full tmpfs"

    @contextmanager
    def filled(self, pid: int) -> Iterator[None]:
        """Fill it to its last byte until the block ends."""
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * CHUNK_BYTES)
        try:
            yield
        finally:
            filler.unlink()


@dataclass
class LimitedFiles:
    """The system refuses what a process writes, with another error than a full disk's."""

    folder: Path
    kind: str = "RLIMIT_FSIZE, for no tmpfs can be mounted here"

    @contextmanager
    def filled(self, pid: int) -> Iterator[None]:
        """Let no file of the process grow or change until the block ends."""
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, before[1]))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@contextmanager
def small_disk() -> Iterator[Disk]:
    """Provide a disk until the block ends: a tmpfs where this user may mount one."""
    folder = Path(tempfile.mkdtemp(prefix="pagemill-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "pagemill-faults", str(folder)]
    is_mounted = shutil.which("mount") is not None and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield MountedDisk(folder) if is_mounted else LimitedFiles(folder)
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)
