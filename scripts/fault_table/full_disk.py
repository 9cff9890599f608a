"""A disk of its own, small, that can be full."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SIZE_BYTES = 4 * 1024**2
CHUNK_BYTES = 4096


class NoDisk(Exception):
    """This machine lets nobody mount a file system here."""


@dataclass(frozen=True)
class FullDisk:
    """A mounted file system."""

    folder: Path

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Fill it to its last byte until the block ends."""
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * CHUNK_BYTES)
        try:
            yield
        finally:
            filler.unlink()


@contextmanager
def small_disk() -> Iterator[FullDisk]:
    """Mount a tmpfs until the block ends. Raises NoDisk."""
    folder = Path(tempfile.mkdtemp(prefix="pagemill-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "pagemill-faults", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoDisk(f"no small disk: {done.stderr.strip()}")
        try:
            yield FullDisk(folder)
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
