"""A local model folder before anything in it is read: nothing may lead out of it."""

import json
from pathlib import Path

INDEXES = "*.index.json"  # each names the files that weights are in


class UnsafeFolder(Exception):
    """A model folder that refers to files which are not its own."""


def check_folder(folder: Path) -> None:
    """Raise UnsafeFolder where an index or a link names a file outside of the folder.

    A snapshot of the hub's cache consists of links to the blobs beside it, which are its own.
    """
    homes = [folder.resolve()]
    if folder.parent.name == "snapshots":
        homes.append((folder.parent.parent / "blobs").resolve())
    for path in folder.iterdir():
        if path.is_symlink() and not any(path.resolve().is_relative_to(home) for home in homes):
            raise UnsafeFolder(f"its file {path.name!r} is a link out of its folder")
    for index in folder.glob(INDEXES):
        for name in _weight_files(index):
            if Path(name).name != name or name == "..":
                raise UnsafeFolder(f"{index.name} names the file {name!r}, which is not in its folder")


def _weight_files(index: Path) -> set[str]:
    try:
        weight_map = json.loads(index.read_text("utf-8"))["weight_map"]
        return set(map(str, weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UnsafeFolder(f"{index.name} is no index of weights") from None
