"""Folders that are made once and kept: whole or not there, whatever ends the process that makes them."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

PARTIAL_PREFIX = ".converting-"
LOCK = ".lock"  # held by whoever makes the folder that it is in, as long as that process lives


def made_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return the folder. Where it is not there, `write` fills one beside it, which then takes its name.

    Of several processes the first one's stays. What a process that was ended left behind is deleted. Raises OSError
    where there is no room, and what `write` raises.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    _delete_abandoned(folder.parent)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=PARTIAL_PREFIX))
    try:
        with (partial / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            write(partial)
            for path in partial.iterdir():
                _flush(path)
            (partial / LOCK).unlink()
            os.replace(partial, folder)
        _flush(folder.parent)
    except OSError:
        if not folder.is_dir():  # else another process was first; its folder is as good
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _flush(path: Path) -> None:
    """Have a file or a folder on the disk: its name may get there before its content otherwise."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete_abandoned(parent: Path) -> None:
    for partial in parent.glob(f"{PARTIAL_PREFIX}*"):
        try:
            with (partial / LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(partial, ignore_errors=True)
        except OSError:  # it is being made, or has just begun or ended to be
            continue
