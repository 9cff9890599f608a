"""A collection that is indexed and summarised by a worker with a scripted model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from sqlalchemy import Engine

from tests.worker.fakes import ScriptedRunner, make_flow
from worker.jobs import PromptJob
from worker.rag.folder import FolderSource
from worker.rag.indexing import Indexed, Indexer
from worker.rag.model import RagModel
from worker.rag.prompts import SummaryPrompt
from worker.rag.splitting import SplitRule
from worker.rag.summarizing import RunOptions, RunPlan, Summarizer
from worker.sql import collections, summaries
from worker.sql.database import reading
from worker.sql.recording import opened_recorder
from worker.sql.store import JobStore
from worker.sql.summaries import SummaryRecord

RULE = SplitRule(chunk_tokens=60, overlap_tokens=8)
PROMPT = SummaryPrompt("Summarise.", max_tokens=60)
NAME = "library"


def encode_messages(job: PromptJob) -> list[int]:
    """Return the bytes of a conversation."""
    return list("\n".join(message.text for message in job.messages or ()).encode())


def summarise(prompt: str) -> str:
    """Return what the scripted model says: the document's title, and how much it was given."""
    title = prompt.partition("Document: ")[2].partition("\n")[0]
    kind = "joined" if "Summaries of its parts" in prompt else "read"
    return f"{title}: {kind} {len(prompt)}"


@dataclass
class Library:
    """A collection, and all that works on it."""

    database: Engine
    database_url: str
    connection: redis.Redis
    model: RagModel
    folder: Path
    runner: ScriptedRunner = field(default_factory=lambda: ScriptedRunner(reply=summarise))
    options: RunOptions = field(default_factory=RunOptions)

    def index(self) -> dict[str, str]:
        """Index the folder; return what was found of each document."""
        found: list[Indexed] = list(Indexer(self.database, self.model, RULE).run(NAME, FolderSource(self.folder)))
        return {document.source: document.change.value for document in found}

    def submit(self, prompt: SummaryPrompt = PROMPT) -> RunPlan:
        """Plan a run and submit it."""
        with opened_recorder(self.database_url) as recorder:
            summarizer = Summarizer(self.database, self.connection, recorder, self.model)
            run = summarizer.plan(NAME, prompt, self.options)
            for _ in summarizer.submit(run, prompt, self.options):
                pass
        return run

    def work(self, **settings: Any) -> None:
        """Let a worker run until nothing waits."""
        make_flow(self.connection, JobStore(self.database), self.runner, encode=encode_messages, **settings).run(
            burst=True
        )

    def records(self) -> dict[str, SummaryRecord]:
        """Return the latest summary of each document by its source."""
        with reading(self.database) as connection:
            collection = collections.existing_collection(connection, NAME)
            return {record.source: record for record in summaries.find_summaries(connection, collection.id)}

    def texts(self) -> Mapping[str, str | None]:
        return {source: record.text for source, record in self.records().items()}
