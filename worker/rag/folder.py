"""A folder of files as a source of documents. No link leads out of it, and nothing but regular files is opened."""

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from worker.errors import PagemillError
from worker.rag.parsing import Parser
from worker.rag.reading import FORMATS, Format, read_document
from worker.rag.sources import SourceItem, SourceKind, hash_of, unreadable

DEFAULT_MAX_FILE_BYTES = 50_000_000


@dataclass(frozen=True, slots=True)
class FolderSource:
    """The txt, md, html and pdf files below a folder; hidden ones and other kinds are passed over."""

    folder: Path
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES
    encoding: str = "utf-8"
    parser: Parser = field(default_factory=Parser)
    _skipped: list[str] = field(default_factory=list)

    @property
    def kind(self) -> SourceKind:
        return SourceKind.FOLDER

    @property
    def place(self) -> str:
        return str(self.folder)

    @property
    def options(self) -> str:
        return self.encoding

    @property
    def remembered(self) -> dict[str, Any]:
        return {"encoding": self.encoding, "max_file_bytes": self.max_file_bytes}

    def items(self) -> Iterator[SourceItem]:
        """Yield the files in the order of their paths. Raises PagemillError for a folder that cannot be listed."""
        self._skipped.clear()
        root = self.folder.resolve()
        if not root.is_dir():
            raise PagemillError(f"folder: {self.folder} is not a folder")

        def refuse(error: OSError) -> None:
            # A part that cannot be listed must not pass for one whose documents were deleted.
            raise PagemillError(f"folder: cannot list {error.filename}: {error.strerror}") from None

        with closing(self.parser):
            for where, folders, names in os.walk(root, onerror=refuse):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for name in folders:
                    if (path := Path(where, name)).is_symlink():
                        self._skipped.append(f"{_shown(path, root)} is a link to a folder; links are not followed")
                for name in sorted(names):
                    form = FORMATS.get(Path(name).suffix.lower())
                    if form is not None and not name.startswith("."):
                        yield self._item(Path(where, name), root, form)

    def skipped(self) -> tuple[str, ...]:
        """Return what the last `items` left out although somebody may have meant it."""
        return tuple(self._skipped)

    def _item(self, path: Path, root: Path, form: Format) -> SourceItem:
        source = _shown(path, root)
        try:
            data = self._read(path, root)
        except OSError as error:
            return unreadable(source, form, f"cannot be read: {error.strerror}")
        except PagemillError as error:
            return unreadable(source, form, str(error))
        read = partial(read_document, data, form, source, self.encoding, self.parser)
        return SourceItem(source, form, hash_of(data), read)

    def _read(self, path: Path, root: Path) -> bytes:
        if path.is_symlink():
            path = path.resolve(strict=True)
            if not path.is_relative_to(root):
                raise PagemillError("is a link that leads out of the folder")
        # Not blocking: a pipe of that name has no end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise PagemillError("is not a regular file")
            data = file.read(self.max_file_bytes + 1)
            if len(data) > self.max_file_bytes:
                size = max(status.st_size, len(data))
                raise PagemillError(
                    f"has {size} bytes; at most {self.max_file_bytes} are read (--max-file-size raises that)"
                )
        return data


def _shown(path: Path, root: Path) -> str:
    """Return a path below the root as text: bytes of a name that are not UTF-8 are shown as escapes."""
    return path.relative_to(root).as_posix().encode("utf-8", "backslashreplace").decode()
