"""What SQLite's planner makes of the store's statements: none reads a whole table to touch a few jobs."""

from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from tests.sql.builders import after, claim_of, dead_of, outcome_of, submitted_of
from worker.records import AttemptState
from worker.sql.database import reading
from worker.sql.store import JobStore

Statement = tuple[str, Any]


@pytest.fixture
def statements(database: Engine) -> list[Statement]:
    """Every statement that the database executes from now on, with one set of its parameters."""
    executed: list[Statement] = []

    @event.listens_for(database, "before_cursor_execute")
    def remember(_connection: Connection, _cursor: Any, sql: str, values: Any, _context: Any, _many: bool) -> None:
        executed.append((sql, values[0] if isinstance(values, list) else values))

    return executed


# PostgreSQL's planner looks at the rows: with few it rightly reads them all.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_store_reads_no_table_whole(database: Engine, store: JobStore, statements: list[Statement]) -> None:
    done, failed, handed_back = (claim_of(name, 1, batch_id="night") for name in ("done", "failed", "handed-back"))
    store.begin_attempts([done, failed, handed_back], "w1")
    store.begin_attempts([claim_of("handed-back", 2)], "w2")
    store.finish_attempts([outcome_of(done), outcome_of(failed, AttemptState.FAILED), outcome_of(handed_back)])
    store.record_dead([dead_of("dead")])
    store.record_cancelled([submitted_of("cancelled", batch_id="night")])
    store.mark_retried(["failed"])
    store.job("done")
    store.states(["done", "dead"])
    store.results(["done"])
    store.batch("night")
    store.begin_attempts([claim_of("lost", 1)], "w1")
    store.count_unfinished()
    page = store.unfinished(None, after(60), 10)
    store.unfinished(page[-1], after(60), 10)
    store.requeue_lost(page)
    assert [job.job_id for job in page] == ["failed", "handed-back", "lost"]
    verbs = ("SELECT", "UPDATE", "DELETE", "INSERT")
    planned = [(sql, values) for sql, values in statements if sql.startswith(verbs)]
    assert len(planned) > 20
    with reading(database) as connection:
        for sql, values in planned:
            plan = [row[-1] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)]
            harmless = ("CONSTANT", "ix_jobs_enqueued_at_id")  # the index of the jobs that have not ended
            whole = [step for step in plan if step.startswith("SCAN ") and not any(word in step for word in harmless)]
            assert not whole, (sql, plan)
