"""A nightly schedule over the standard library's documentation topics, three of which change."""

from datetime import timedelta
from pathlib import Path
from pydoc_data.topics import topics

import redis
from sqlalchemy import Engine

from tests.cron.conftest import Schedulers, schedule_of
from tests.rag.summaries import NAME, RULE, Library
from worker.cron.actions import ActionKind, dump_action, make_action
from worker.cron.records import OverlapPolicy, RunState
from worker.rag.folder import FolderSource
from worker.rag.indexing import Indexer
from worker.rag.model import RagModel
from worker.records import JobState
from worker.settings_model import Settings

NUM_TOPICS = 30
CHANGED = 3
LONGEST_CHARACTERS = 1500  # within the context, so that each is one job


def test_nightly_summaries_are_made_of_what_changed(
    database: Engine, database_url: str, connection: redis.Redis, settings: Settings, model: RagModel, tmp_path: Path
) -> None:
    folder = tmp_path / "topics"
    folder.mkdir()
    short = sorted(name for name, text in topics.items() if len(text) < LONGEST_CHARACTERS)[:NUM_TOPICS]
    for name in short:
        (folder / f"{name}.txt").write_text(topics[name])
    list(Indexer(database, model, RULE).run(NAME, FolderSource(folder)))
    library = Library(database, database_url, connection, model, folder)
    schedulers = Schedulers(database, connection)
    scheduler = schedulers.scheduler(model=settings.model)
    action = make_action(ActionKind.RAG, collection=NAME, index=True, max_tokens=60)
    schedulers.add(schedule_of(expression="30 2 * * *", action=dump_action(action), overlap=OverlapPolicy.SKIP))

    def night() -> tuple[str | None, dict[JobState, int]]:
        schedulers.clock.time += timedelta(days=1)
        schedulers.tick(scheduler)
        library.work(scheduler=False)
        detail = schedulers.history()[-1]
        assert detail.run.state is RunState.SUBMITTED, detail.run.message
        return detail.run.message, dict(detail.jobs)

    assert len(short) == NUM_TOPICS
    assert night() == (f"{NUM_TOPICS} documents to summarise, 0 unchanged", {JobState.DONE: NUM_TOPICS})
    before = library.records()
    assert night() == (f"0 documents to summarise, {NUM_TOPICS} unchanged", {})
    for name in short[:CHANGED]:
        (folder / f"{name}.txt").write_text(f"{topics[name]}\nOne more thing about {name}.\n")
    told = f"{CHANGED} documents to summarise, {NUM_TOPICS - CHANGED} unchanged"
    assert night() == (told, {JobState.DONE: CHANGED})
    after = library.records()
    changed = {source for source, record in after.items() if record.job_id != before[source].job_id}
    assert changed == {f"{name}.txt" for name in short[:CHANGED]}
    assert all(record.text for record in after.values())
