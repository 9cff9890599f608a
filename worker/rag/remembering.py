"""How a collection was indexed, so that it can be indexed again by its name alone. No password is kept."""

import json
from pathlib import Path
from typing import Any

from worker.errors import PagemillError
from worker.rag.folder import FolderSource
from worker.rag.rows import QuerySource
from worker.rag.sources import Source, SourceKind
from worker.sql.collections import Collection


def source_of(collection: Collection, **changes: Any) -> Source:
    """Return the source that a collection was indexed from; `changes` stand for what was remembered under their names,
    those that are None do not.

    Raises PagemillError for a query of which an earlier version kept no URL.
    """
    known: dict[str, Any] = json.loads(collection.source_options or "{}")
    known |= {name: value for name, value in changes.items() if value is not None}
    limits = {"max_file_bytes": known["max_file_bytes"]} if "max_file_bytes" in known else {}
    of_other_kind = "sql_url" if collection.source_kind == SourceKind.FOLDER else "encoding"
    if changes.get(of_other_kind) is not None:
        raise PagemillError(
            f"{of_other_kind}: collection {collection.name} was indexed from {collection.source_kind}: "
            f"{collection.source}"
        )
    if collection.source_kind == SourceKind.FOLDER:
        encoding = {"encoding": known["encoding"]} if "encoding" in known else {}
        return FolderSource(Path(collection.source), **limits, **encoding)
    if "sql_url" not in known:
        raise PagemillError(
            f"collection {collection.name} was indexed by a version that kept no URL of its database; index it once "
            "more with --sql and --sql-url"
        )
    return QuerySource(collection.source, known["sql_url"], *limits.values())
