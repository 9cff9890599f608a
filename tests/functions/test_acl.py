"""Plain functions need nothing of Redis that docs/security.md does not give to a worker."""

from pathlib import Path

import pytest
from rq import Callback, Queue, Repeat, Retry
from rq.command import send_stop_job_command
from rq.job import JobStatus
from rq.rate_limit import RateLimit

from tests.functions import tasks
from tests.functions.tasks import add, ask_for_retry, fail, note_in_meta, wait
from tests.security.acl import acl_server
from tests.servers import SERVERS
from tests.worker.fakes import eventually, make_flow, running
from worker.sql.store import JobStore

TASKS = "tests.functions.tasks"


@pytest.mark.parametrize("name", SERVERS)
def test_whole_life_of_functions(name: str, tmp_path: Path, sqlite_store: JobStore) -> None:
    with acl_server(name, tmp_path) as server, server.connected("worker") as connection:
        queue = Queue("default", connection=server.bytes_admin, serializer="json")
        limit = RateLimit("one", concurrency=1)
        jobs = [
            queue.enqueue(add, 1, on_success=Callback(f"{TASKS}.read_own_status")),
            queue.enqueue(fail, "once", retry=Retry(max=1, interval=1)),
            queue.enqueue(add, 2, repeat=Repeat(times=2, interval=1)),
            queue.enqueue(ask_for_retry),
            queue.enqueue(note_in_meta),
            queue.enqueue(add, 3, result_ttl=0),
            queue.enqueue(add, 4, rate_limit=limit),
            queue.enqueue(fail, "limited", rate_limit=limit, retry=Retry(max=1)),
        ]
        last = queue.enqueue(add, 5, depends_on=jobs[0])
        flow = make_flow(connection, sqlite_store, beat_seconds=0.05, sweep_seconds=0.05, functions=(f"{TASKS}.*",))
        flow.run(burst=True)
        assert (last.get_status(), jobs[1].get_status()) == (JobStatus.FINISHED, JobStatus.FAILED)

        stopped = queue.enqueue(wait, job_timeout=-1)
        with running(make_flow(connection, sqlite_store, functions=(f"{TASKS}.*",))) as worker:
            eventually(lambda: stopped.id in tasks.begun)
            send_stop_job_command(server.bytes_admin, stopped.id, serializer="json")
            eventually(lambda: stopped.get_status() is JobStatus.STOPPED)
            worker.stop()
        assert server.refusals() == set()
