"""Which custom ids a file had so far, on disk: their number does not matter to memory."""

import hashlib
import sqlite3
from types import TracebackType
from typing import Self

DIGEST_BYTES = 16


class SeenIds:
    """Digests of custom ids and the lines they came from, in a temporary SQLite database that nobody else sees."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None)  # "" is a file that goes when it is closed
        self._connection.execute("PRAGMA journal_mode=OFF")
        self._connection.execute("PRAGMA synchronous=OFF")
        self._connection.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID")
        self._connection.execute("BEGIN")

    def add(self, custom_id: str, line: int) -> int | None:
        """Note an id; return the line that had it before, or None."""
        digest = hashlib.blake2b(custom_id.encode(), digest_size=DIGEST_BYTES).digest()
        added = self._connection.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (digest, line))
        if added.rowcount:
            return None
        (first,) = self._connection.execute("SELECT line FROM seen WHERE digest = ?", (digest,)).fetchone()
        return int(first)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
