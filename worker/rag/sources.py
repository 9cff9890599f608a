"""Where documents come from, and what a source yields: a folder's files or a query's rows, one at a time."""

import hashlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from worker.rag.reading import Document, Format, UnreadableDocument


class SourceKind(StrEnum):
    """What kind of source a collection has."""

    FOLDER = "folder"
    SQL = "sql"


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One document of a source, not parsed yet. `read` raises UnreadableDocument."""

    source: str  # its path below the folder, or the row's id: its name within the collection
    format: Format
    source_hash: str | None  # SHA-256 of its bytes; None where these cannot be had
    read: Callable[[], Document]


class Source(Protocol):
    """What a collection is indexed from."""

    @property
    def kind(self) -> SourceKind: ...

    @property
    def place(self) -> str:
        """The folder's path, or the query."""

    @property
    def options(self) -> str:
        """What else the texts depend on: with other options, everything is read anew."""

    @property
    def remembered(self) -> dict[str, Any]:
        """What it takes to read the source again, beside its place; no secret. See `worker.rag.remembering`."""

    def items(self) -> Iterator[SourceItem]:
        """Yield every document, each name once. Raises PagemillError where the source as a whole cannot be read."""

    def skipped(self) -> Collection[str]:
        """Return what the last `items` passed over without a mention among them, a line each."""


def unreadable(source: str, form: Format, reason: str) -> SourceItem:
    """Return an item that nothing could be read of."""

    def read() -> Document:
        raise UnreadableDocument(reason)

    return SourceItem(source, form, None, read)


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
