"""What a schedule calls: a folder indexed again, and the summaries that are missing."""

import json
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine, make_url, text, update

from tests.rag.summaries import NAME, PROMPT, Library
from worker.errors import PagemillError, ServiceUnavailable
from worker.rag.folder import FolderSource
from worker.rag.indexing import Change, Indexer
from worker.rag.model import RagModel
from worker.rag.rows import QuerySource
from worker.rag.runs import reindex, summarize_collection
from worker.rag.splitting import SplitRule
from worker.rag.summarizing import RunOptions, RunPlan
from worker.settings_model import Settings
from worker.sql.collections import existing_collection
from worker.sql.database import open_database, reading, writing
from worker.sql.recording import opened_recorder
from worker.sql.tables import CollectionRow


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
    found = {document.source: document.change for document in reindex(settings, database, NAME)}
    assert [name for name, change in found.items() if change is not Change.UNCHANGED] == ["bees.txt"]
    assert [planned.document.source for planned in run_at_night().new] == ["bees.txt"]
    library.work()
    assert set(library.runner.generations.values()) == {1}
    database.dispose()


def test_collection_of_a_query_is_indexed_again(
    database: Engine, database_url: str, model: RagModel, settings: Settings
) -> None:
    with writing(database) as connection:
        connection.execute(text("DROP TABLE IF EXISTS articles"))
        connection.execute(text("CREATE TABLE articles (id INTEGER, body TEXT)"))
        connection.execute(text("INSERT INTO articles VALUES (1, 'One text.')"))
    secret = make_url(database_url)
    if secret.get_backend_name() == "postgresql":  # this server trusts everybody
        secret = secret.set(password="s3cr3t").update_query_dict({"sslpassword": "t0p"})
    source = QuerySource("SELECT id, body FROM articles", secret.render_as_string(hide_password=False))
    assert [found.source for found in Indexer(database, model, SplitRule(60, 8)).run("rows", source)] == ["1"]
    with reading(database) as connection:
        kept = existing_collection(connection, "rows").source_options or ""
    assert json.loads(kept)["max_file_bytes"] == 50_000_000
    assert "s3cr3t" not in kept
    assert "t0p" not in kept
    with writing(database) as connection:
        connection.execute(text("INSERT INTO articles VALUES (2, 'Two texts.')"))
    found = {document.source: document.change for document in reindex(settings, database, "rows")}
    assert found == {"1": Change.UNCHANGED, "2": Change.ADDED}
    with writing(database) as connection:  # as an earlier version left it
        connection.execute(update(CollectionRow).values(source_options=None))
        connection.execute(text("DROP TABLE articles"))
    with pytest.raises(PagemillError, match="rows was indexed by a version that kept no URL"):
        reindex(settings, database, "rows")


def test_options_of_a_folder_are_remembered(
    database: Engine, model: RagModel, settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "a.txt").write_bytes("Zürich".encode("latin-1"))
    source = FolderSource(folder, max_file_bytes=100, encoding="latin-1")
    list(Indexer(database, model, SplitRule(60, 8)).run("old", source))
    (folder / "b.txt").write_bytes("Köln".encode("latin-1"))
    (folder / "c.txt").write_bytes(b"x" * 101)
    found = {document.source: document.change.value for document in reindex(settings, database, "old")}
    assert found == {"a.txt": "unchanged", "b.txt": "added", "c.txt": "unreadable"}


def test_a_database_that_wants_a_password_says_where_it_comes_from(migrated_postgresql_url: str) -> None:
    url = make_url(migrated_postgresql_url).set(username="nobody-of-this-name", password=None)
    with pytest.raises(ServiceUnavailable, match=r"libpq takes it from ~/\.pgpass or PGPASSWORD"):
        list(QuerySource("SELECT 1, 'x'", url.render_as_string(hide_password=False)).items())
