"""Delayed jobs in a whole worker."""

from datetime import timedelta

import redis
from rq import Queue

from tests.worker.fakes import make_flow
from worker.records import JobState
from worker.sql.store import JobStore


def test_burst_waits_for_what_is_due_soon_and_for_nothing_else(connection: redis.Redis, sqlite_store: JobStore) -> None:
    queue = Queue("default", connection=connection, serializer="json")
    due = queue.enqueue_in(timedelta(seconds=-1), "pagemill.prompt", {"prompt": "now"})
    soon = queue.enqueue_in(timedelta(seconds=1), "pagemill.prompt", {"prompt": "soon"})
    tomorrow = queue.enqueue_in(timedelta(days=1), "pagemill.prompt", {"prompt": "tomorrow"})
    make_flow(connection, sqlite_store).run(burst=True)
    ids = [due.id, soon.id, tomorrow.id]
    assert sqlite_store.states(ids) == {due.id: JobState.DONE, soon.id: JobState.DONE}
    assert queue.scheduled_job_registry.get_job_ids() == [tomorrow.id]
