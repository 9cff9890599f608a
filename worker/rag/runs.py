"""What a schedule calls: a collection brought up to date and summarised, with the configured services and model."""

import redis
from sqlalchemy import Engine

from worker.queue.submission import Recorder
from worker.rag.capacity import within_workers
from worker.rag.indexing import Indexed, Indexer
from worker.rag.model import open_model
from worker.rag.prompts import SummaryPrompt
from worker.rag.remembering import source_of
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
    model = within_workers(open_model(settings), database, settings)
    summarizer = Summarizer(database, connection, recorder, model)
    run = summarizer.plan(name, prompt, options)
    for _ in summarizer.submit(run, prompt, options):
        pass
    return run


def reindex(settings: Settings, database: Engine, name: str) -> tuple[Indexed, ...]:
    """Bring a collection up to date with what it was indexed from, and return what was found.

    Raises PagemillError for a collection that is not there or cannot be read, ServiceUnavailable as the databases do.
    """
    with reading(database) as connection:
        collection = existing_collection(connection, name)
    rule = SplitRule(collection.chunk_tokens, collection.overlap_tokens)
    return tuple(Indexer(database, open_model(settings), rule).run(name, source_of(collection)))
