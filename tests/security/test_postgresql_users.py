"""The users of PostgreSQL that docs/security.md documents can do what they need; a missing grant harms no job."""

import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
import redis
from sqlalchemy import Engine, create_engine, make_url, text

from scripts.fault_table.postgresql import create_database, drop_database
from tests.security.acl import DOCUMENT
from tests.worker.fakes import eventually, make_flow, running
from worker.client import submit
from worker.errors import ServiceUnavailable
from worker.records import JobState
from worker.sql import schema
from worker.sql.database import open_database
from worker.sql.recording import opened_recorder
from worker.sql.reporting import ReportFilter, Reports
from worker.sql.store import JobStore

ROLES = ("pagemill_worker", "pagemill_producer", "pagemill_reporter")


class Users:
    """A database of its own with the documented users, under names that no other test has."""

    def __init__(self, owner_url: str, suffix: str) -> None:
        self.owner_url = owner_url
        self.suffix = suffix

    def url(self, role: str) -> str:
        return make_url(self.owner_url).set(username=self.name(role)).render_as_string(hide_password=False)

    def name(self, role: str) -> str:
        return f"pagemill_{role}_{self.suffix}"

    def as_owner(self, *statements: str) -> None:
        owner = create_engine(make_url(self.owner_url).set(drivername="postgresql+psycopg"))
        with owner.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
        owner.dispose()


@pytest.fixture
def users(postgresql_server: Engine) -> Iterator[Users]:
    suffix = uuid4().hex[:12]
    url = create_database(postgresql_server, f"pagemill_test_{suffix}")
    schema.upgrade(url)
    (block,) = re.findall(r"^```sql\n(.*?)^```", DOCUMENT.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    for role in ROLES:
        block = block.replace(role, f"{role}_{suffix}")
    users = Users(url, suffix)
    users.as_owner(block)
    yield users
    drop_database(postgresql_server, f"pagemill_test_{suffix}")
    with postgresql_server.connect() as connection:
        for role in ROLES:
            connection.execute(text(f"DROP ROLE {role}_{suffix}"))


@pytest.fixture
def worker_store(users: Users) -> Iterator[JobStore]:
    database = open_database(users.url("worker"))
    yield JobStore(database)
    database.dispose()


def test_jobs_from_the_producer_to_the_reporter(connection: redis.Redis, users: Users, worker_store: JobStore) -> None:
    with opened_recorder(users.url("producer")) as recorder:
        for _ in range(2):
            batch = [{"prompt": "x", "batch_id": "b", "batch_size": 2}]
            submit(connection, [*batch, {"prompt": "y", "model": "other"}], recorder=recorder)
    connection.hset("rq:job:spoilt", mapping={"status": "queued", "data": "?"})
    connection.rpush("rq:queue:default", "spoilt")
    make_flow(connection, worker_store).run(burst=True)
    failed = [job_id for job_id, state in worker_store.states(recorded(users)).items() if state is JobState.FAILED]
    assert len(failed) == 2
    worker_store.mark_retried(failed)
    database = open_database(users.url("reporter"))
    assert Reports(database).summary(ReportFilter()).jobs_by_state[JobState.DONE] == 2
    with pytest.raises(ServiceUnavailable, match="permission denied for table jobs"):
        JobStore(database).mark_retried(failed)
    database.dispose()
    schema.check(users.url("worker"))


def recorded(users: Users) -> list[str]:
    owner = create_engine(make_url(users.owner_url).set(drivername="postgresql+psycopg"))
    with owner.connect() as connection:
        ids = list(connection.scalars(text("SELECT id FROM jobs")))
    owner.dispose()
    return ids


def test_missing_grant_stops_claims_and_blames_no_job(
    connection: redis.Redis, users: Users, worker_store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    users.as_owner(f"REVOKE INSERT ON attempts FROM {users.name('worker')}")
    (job_id,) = submit(connection, ["x"])
    with running(make_flow(connection, worker_store)) as worker:
        eventually(lambda: "permission denied for table attempts" in caplog.text)
        assert worker_store.states([job_id]) == {}
        users.as_owner(f"GRANT INSERT ON attempts TO {users.name('worker')}")
        eventually(lambda: worker_store.states([job_id]) == {job_id: JobState.DONE})
        worker.stop()


def test_producer_without_its_grant_is_told(connection: redis.Redis, users: Users) -> None:
    with (
        opened_recorder(users.url("reporter")) as recorder,
        pytest.raises(ServiceUnavailable, match="permission denied for table jobs"),
    ):
        submit(connection, ["x"], recorder=recorder)
    assert connection.llen("rq:queue:default") == 0
