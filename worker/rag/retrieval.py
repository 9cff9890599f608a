"""Finding passages by BM25, in an index on this machine's disk that is made of what SQL has.

Tantivy rather than the databases' own search: PostgreSQL ranks without the rarity of words, and SQLite's BM25 counts
otherwise, so that answers would depend on where the documents are kept. An index is one revision of a collection; it
may be deleted at any time.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from worker.errors import ServiceUnavailable
from worker.extras import import_extra
from worker.sql import collections
from worker.sql.collections import Collection
from worker.sql.database import reading

MAX_QUERY_WORDS = 256
DOCUMENTS_AT_ONCE = 100
TOKENIZER = "en_stem"
INDEX_VERSION = 1  # rises with a change to what is indexed, or how

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found."""

    chunk_id: int
    score: float


class Searcher:
    """Searches one revision of a collection."""

    def __init__(self, index: Any) -> None:
        """`index` is a `tantivy.Index`."""
        self._index = index
        self._searcher = index.searcher()

    def search(self, question: str, limit: int) -> list[Hit]:
        """Return the passages that fit best, the best first; none where no word of the question is in any."""
        # In lower case, and without signs: nothing of a question is an operator.
        words = list(dict.fromkeys(_WORD.findall(question.lower())))[:MAX_QUERY_WORDS]
        if not words:
            return []
        query, _ = self._index.parse_query_lenient(" ".join(words), ["title", "text"])
        found = self._searcher.search(query, limit).hits
        hits = [Hit(int(self._searcher.doc(address).get_first("chunk_id")), float(score)) for score, address in found]
        return sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))


def open_searcher(
    database: Engine, collection: Collection, data_dir: Path, tell: Callable[[int], None] = lambda number: None
) -> Searcher:
    """Return a searcher over the collection as it is now; its index is made if it is not there.

    `tell` hears how many passages are indexed so far. Raises ConfigurationError where the `rag` extra is not installed
    and ServiceUnavailable where the index cannot be written.
    """
    tantivy = import_extra("tantivy", "searching documents", extra="rag")
    folder = data_dir / "search" / f"{collection.key}-{INDEX_VERSION}-{collection.revision}"
    if not folder.is_dir():
        try:
            _make_index(tantivy, database, collection, folder, tell)
        except OSError as error:
            raise ServiceUnavailable(f"data_dir: cannot write {folder}: {error.strerror}") from None
    return Searcher(tantivy.Index.open(str(folder)))


def _make_index(
    tantivy: Any, database: Engine, collection: Collection, folder: Path, tell: Callable[[int], None]
) -> None:
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    try:
        builder = tantivy.SchemaBuilder()
        builder.add_integer_field("chunk_id", stored=True)
        builder.add_text_field("title", tokenizer_name=TOKENIZER)
        builder.add_text_field("text", tokenizer_name=TOKENIZER)
        index = tantivy.Index(builder.build(), path=str(partial))
        writer = index.writer(num_threads=1)  # one segment order, so that equal scores come in one order
        _add_passages(tantivy, writer, database, collection, tell)
        writer.commit()
        writer.wait_merging_threads()
        try:
            os.replace(partial, folder)
        except OSError:
            if not folder.is_dir():  # else another process was first; its index is as good
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for earlier in folder.parent.glob(f"{collection.key}-*"):
        if earlier != folder:
            shutil.rmtree(earlier, ignore_errors=True)


def _add_passages(
    tantivy: Any, writer: Any, database: Engine, collection: Collection, tell: Callable[[int], None]
) -> None:
    number = 0
    with reading(database) as connection:
        ids = [document.id for document in collections.find_documents(connection, collection.id)]
        for start in range(0, len(ids), DOCUMENTS_AT_ONCE):
            for chunk in collections.find_chunks(connection, ids[start : start + DOCUMENTS_AT_ONCE]):
                writer.add_document(tantivy.Document(chunk_id=chunk.id, title=chunk.title, text=chunk.text))
                number += 1
            tell(number)
