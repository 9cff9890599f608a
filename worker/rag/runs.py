"""What a schedule calls: a collection brought up to date and summarised, with the configured services and model."""

from pathlib import Path

import redis
from sqlalchemy import Engine

from worker.errors import PagemillError
from worker.queue.submission import Recorder
from worker.rag.folder import FolderSource
from worker.rag.indexing import Indexed, Indexer
from worker.rag.model import open_model
from worker.rag.prompts import SummaryPrompt
from worker.rag.sources import SourceKind
from worker.rag.splitting import SplitRule
from worker.rag.summarizing import RunOptions, RunPlan, Summarizer
from worker.settings_model import Settings
from worker.sql.collections import existing_collection
from worker.sql.database import reading


def summarize_collection(
    settings: Settings,
    database: Engine,
    connection: redis.Redis,
    recorder: Recorder,
    name: str,
    prompt: SummaryPrompt,
    options: RunOptions,
) -> RunPlan:
    """Submit the summaries that the collection lacks, and return what they are; workers do the rest.

    Safe to repeat after any interruption: what was submitted is not submitted again. Raises PagemillError for a
    collection that is not there, ConfigurationError for a model that cannot be read, ServiceUnavailable and TryLater as
    the database and the queue do.
    """
    summarizer = Summarizer(database, connection, recorder, open_model(settings))
    run = summarizer.plan(name, prompt, options)
    for _ in summarizer.submit(run, prompt, options):
        pass
    return run


def reindex_folder(settings: Settings, database: Engine, name: str) -> tuple[Indexed, ...]:
    """Bring a collection up to date with the folder that it was indexed from, and return what was found.

    Raises PagemillError for a collection that is not there, or was indexed from a query: its database's URL, which may
    hold a password, is not kept.
    """
    with reading(database) as connection:
        collection = existing_collection(connection, name)
    if collection.source_kind != SourceKind.FOLDER:
        raise PagemillError(f"collection {name} was indexed from a query; index it with pagemill rag index --sql")
    rule = SplitRule(collection.chunk_tokens, collection.overlap_tokens)
    source = FolderSource(Path(collection.source))
    return tuple(Indexer(database, open_model(settings), rule).run(name, source))
