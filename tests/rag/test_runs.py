"""What a schedule calls: a folder indexed again, and the summaries that are missing."""

from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine

from tests.rag.summaries import NAME, PROMPT, Library
from worker.errors import PagemillError
from worker.rag.indexing import Change, Indexer
from worker.rag.model import RagModel
from worker.rag.rows import QuerySource
from worker.rag.runs import reindex_folder, summarize_collection
from worker.rag.splitting import SplitRule
from worker.rag.summarizing import RunOptions, RunPlan
from worker.settings_model import Settings
from worker.sql.database import open_database
from worker.sql.recording import opened_recorder


def test_nightly_run_does_what_changed_and_its_repetition_nothing(
    sqlite_url: str, connection: redis.Redis, model: RagModel, settings: Settings, documents: Path
) -> None:
    database = open_database(sqlite_url)
    library = Library(database, sqlite_url, connection, model, documents)
    library.index()

    def run_at_night() -> RunPlan:
        with opened_recorder(sqlite_url) as recorder:
            options = RunOptions(batch_id="nightly.1")
            return summarize_collection(settings, database, connection, recorder, NAME, PROMPT, options)

    assert len(run_at_night().new) == 5
    again = run_at_night()  # the same slot, fired twice
    assert (len(again.new), len(again.pending)) == (0, 5)
    library.work()
    (documents / "bees.txt").write_text("Other bees.")
    found = {document.source: document.change for document in reindex_folder(settings, database, NAME)}
    assert [name for name, change in found.items() if change is not Change.UNCHANGED] == ["bees.txt"]
    assert [planned.document.source for planned in run_at_night().new] == ["bees.txt"]
    library.work()
    assert set(library.runner.generations.values()) == {1}
    database.dispose()


def test_collection_of_a_query_is_not_indexed_again_by_itself(
    database: Engine, database_url: str, model: RagModel, settings: Settings
) -> None:
    source = QuerySource("SELECT 1, 'A text.'", database_url)
    assert [found.source for found in Indexer(database, model, SplitRule(60, 8)).run("rows", source)] == ["1"]
    with pytest.raises(PagemillError, match="collection rows was indexed from a query"):
        reindex_folder(settings, database, "rows")
