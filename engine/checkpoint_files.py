"""A checkpoint's safetensors files, of a local folder or of the hub, read a tensor at a time."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

CONFIG_NAME = "config.json"
# Of files up to this size a fingerprint has all; of larger ones their size and time, and pieces.
WHOLE_BYTES = 8 << 20
PIECE_BYTES = 4096
PIECE_EVERY_BYTES = 1 << 20  # at least: a file has so many pieces at most
MOST_PIECES = 1024


class UnreadableCheckpoint(Exception):
    """A checkpoint whose files are not there, or damaged."""


def find_file(source: str, name: str, *, is_here: bool = False) -> Path | None:
    """Return the path of a file of a local folder or, fetched, of a hub id; None of one that it does not have.

    One of a hub id that is known to be here is not asked for again. Raises UnreadableCheckpoint.
    """
    options: dict[str, Any] = {"local_files_only": is_here, "_raise_exceptions_for_missing_entries": False}
    try:
        found: str | None = cached_file(source, name, **options)
    except Exception as error:  # the hub's client has many
        raise UnreadableCheckpoint(str(error).strip().partition("\n")[0]) from error
    return None if found is None else Path(found)


def read_config(source: str, *, is_here: bool = False) -> Mapping[str, Any]:
    """Return the config.json of a local folder or hub id. Raises UnreadableCheckpoint."""
    path = find_file(source, CONFIG_NAME, is_here=is_here)
    try:
        config = None if path is None else json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise UnreadableCheckpoint(f"its {CONFIG_NAME} is not there, or is no JSON object")
    return config


def fingerprint(source: str) -> str:
    """Return a digest of the content of a local folder's, or a hub id's, config and weights.

    Of a large file the beginning, with the names and places of its tensors, and pieces all over it are read: another
    that took its place is told apart, with the same size and time too, wherever that changed more than a few pages.
    Its files are here. Raises UnreadableCheckpoint.
    """
    digest = hashlib.sha256(json.dumps(read_config(source, is_here=True), sort_keys=True).encode())
    try:
        for path in sorted(set(_paths_by_name(source, is_here=True).values())):
            digest.update(f"{path.name} {_file_digest(path.resolve())}\n".encode())
    except OSError as error:
        raise UnreadableCheckpoint(str(error)) from error
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size <= WHOLE_BYTES:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode())
        header_bytes = 8 + int.from_bytes(file.read(8), "little")  # as safetensors has it
        distance = max(PIECE_EVERY_BYTES, status.st_size // MOST_PIECES)
        pieces = [(0, min(header_bytes, WHOLE_BYTES))]
        pieces += [(start, PIECE_BYTES) for start in range(header_bytes, status.st_size, distance)]
        for start, size in [*pieces, (status.st_size - PIECE_BYTES, PIECE_BYTES)]:
            digest.update(os.pread(file.fileno(), size, start))
        return digest.hexdigest()


class CheckpointFiles:
    """The tensors of a checkpoint by name. A context; files stay open, and mapped, until it is left."""

    def __init__(self, source: str) -> None:
        """Raises UnreadableCheckpoint."""
        self._stack = ExitStack()
        self._open: dict[Path, Any] = {}
        self._paths = _paths_by_name(source)
        self.names = frozenset(self._paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def in_order(self) -> list[str]:
        """Return all names, those of one file together."""
        return sorted(self.names, key=lambda name: (self._paths[name], name))

    def read(self, name: str) -> Tensor:
        """Return a tensor. Raises UnreadableCheckpoint."""
        try:
            tensor: Tensor = self._file(self._paths[name]).get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise UnreadableCheckpoint(f"its tensor {name!r} cannot be read: {error}") from error
        return tensor

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = self._stack.enter_context(safe_open(path, framework="pt"))
        return self._open[path]


def _paths_by_name(source: str, *, is_here: bool = False) -> dict[str, Path]:
    index = find_file(source, SAFE_WEIGHTS_INDEX_NAME, is_here=is_here)
    if index is None:
        path = find_file(source, SAFE_WEIGHTS_NAME, is_here=is_here)
        if path is None:
            raise UnreadableCheckpoint(f"no file named {SAFE_WEIGHTS_NAME}")
        try:
            with safe_open(path, framework="pt") as file:
                return dict.fromkeys(file.keys(), path)
        except (OSError, SafetensorError) as error:
            raise UnreadableCheckpoint(f"{path.name} cannot be read: {error}") from error
    try:
        weight_map: dict[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
        paths = {name: find_file(source, name, is_here=is_here) for name in sorted(set(weight_map.values()))}
        found = {name: path for name, file in weight_map.items() if (path := paths[file]) is not None}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UnreadableCheckpoint(f"{index.name} is no index of weights") from None
    if len(found) < len(weight_map):
        missing = next(name for name, path in paths.items() if path is None)
        raise UnreadableCheckpoint(f"its file {missing} is missing")
    return found
