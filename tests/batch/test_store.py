"""Batches made of files in SQL: how they move, and how their jobs are read, on both databases."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from tests.batch.batches import BATCH, batch_of, begin, end
from tests.sql.builders import after
from worker.batch.exporting import error_lines, output_lines
from worker.batch.records import BatchState, LineFault
from worker.batch.results import BatchResults
from worker.batch.store import BatchStore
from worker.openai_api.fields import Endpoint
from worker.records import AttemptState, JobState

NOW = datetime(2026, 3, 1, 13, tzinfo=UTC)


@pytest.fixture
def batches(database: Engine) -> BatchStore:
    return BatchStore(database, clock=lambda: NOW)


def state_of(batches: BatchStore) -> BatchState:
    status = batches.status(BATCH)
    assert status is not None
    return status.batch.state


def test_a_new_batch_is_validating_whatever_others_do(batches: BatchStore) -> None:
    made = batches.create(batch_of(labels={"job": "nightly"}, expires_at=after(600), endpoint=Endpoint.CHAT))
    begin(batches, [1, 2], batch_of("batch_other"))
    status = batches.status(BATCH)
    assert status is not None
    assert (status.batch, status.batch.state, status.counts.total) == (made, BatchState.VALIDATING, None)


def test_life_of_a_batch(batches: BatchStore) -> None:
    begin(batches, [1, 3], num_faults=1)
    assert state_of(batches) is BatchState.IN_PROGRESS
    end(batches, 1)
    end(batches, 3, AttemptState.FAILED)
    status = batches.status(BATCH)
    assert status is not None
    assert (status.batch.state, status.batch.completed_at) == (BatchState.COMPLETED, after(23))
    assert (status.counts.total, status.counts.completed, status.counts.failed) == (3, 1, 2)
    again = batches.status(BATCH)
    assert again is not None
    assert (again.batch, again.counts) == (status.batch, status.counts)
    assert batches.status("batch_unknown") is None


def test_a_batch_whose_output_is_written_by_a_command_waits_for_that(batches: BatchStore) -> None:
    begin(batches, [1], batch_of(output_name="/tmp/out.jsonl"))
    end(batches, 1)
    assert state_of(batches) is BatchState.FINALIZING
    assert batches.written(BATCH).batch.completed_at == NOW
    assert state_of(batches) is BatchState.COMPLETED


def test_a_request_that_expired_makes_its_batch_expired(batches: BatchStore) -> None:
    begin(batches, [1, 2])
    end(batches, 1)
    end(batches, 2, AttemptState.FAILED, error_code="deadline_exceeded", error_message="too late")
    assert state_of(batches) is BatchState.EXPIRED
    assert b'"code": "batch_expired"' in b"".join(error_lines(batches, batch_of(endpoint=Endpoint.CHAT)))


def test_a_cancelled_batch_is_cancelling_until_its_jobs_have_ended(batches: BatchStore) -> None:
    begin(batches, [1, 2])
    batches.start_cancelling(BATCH)
    assert batches.is_cancelling(BATCH)
    end(batches, 1)
    assert state_of(batches) is BatchState.CANCELLING
    end(batches, 2, AttemptState.CANCELLED)
    assert state_of(batches) is BatchState.CANCELLED
    batches.reopen(BATCH)
    assert state_of(batches) is BatchState.COMPLETED  # nothing runs again in this test


def test_a_failed_batch_says_why_and_frees_its_key(batches: BatchStore) -> None:
    batches.create(batch_of(run_key="k"))
    batches.fail(BATCH, "no line is a request")
    status = batches.status(BATCH)
    assert status is not None
    assert (status.batch.state, status.batch.failure) == (BatchState.FAILED, "no line is a request")
    assert batches.by_run_key("k") is None


def test_one_key_is_one_batch(batches: BatchStore) -> None:
    first = batches.create(batch_of(run_key="k"))
    assert batches.create(batch_of("batch_2", run_key="k")) == first
    assert batches.by_run_key("k") == first
    batches.forget_run(BATCH)
    assert batches.create(batch_of("batch_2", run_key="k")).batch_id == "batch_2"
    assert batches.create(batch_of("batch_2", tenant="other")).tenant == "acme"


def test_batches_are_listed_latest_first_and_by_tenant(batches: BatchStore) -> None:
    for number in range(5):
        tenant = "acme" if number % 2 == 0 else "other"
        at = after(0) + timedelta(seconds=number // 2)  # some at the same moment
        batches.create(batch_of(f"batch_{number}", tenant=tenant, created_at=at))
    names = [status.batch.batch_id for status in batches.latest(10)]
    assert names == ["batch_4", "batch_3", "batch_2", "batch_1", "batch_0"]
    assert [status.batch.batch_id for status in batches.latest(2, after="batch_3")] == ["batch_2", "batch_1"]
    assert [status.batch.batch_id for status in batches.latest(9, tenant="other")] == ["batch_3", "batch_1"]


def test_faults_are_written_once_and_read_in_order(batches: BatchStore) -> None:
    batches.create(batch_of())
    faults = [LineFault(line, None, f"fault {line}", "code", "param") for line in range(1201, 0, -1)]
    batches.add_faults(BATCH, faults)
    batches.add_faults(BATCH, [replace(faults[0], message="again")])
    batches.add_faults(BATCH, [])
    assert list(batches.all_faults(BATCH)) == sorted(faults, key=lambda fault: fault.line)
    batches.clear_faults(BATCH)
    assert list(batches.all_faults(BATCH)) == []


def test_jobs_are_read_in_the_order_of_their_lines(batches: BatchStore) -> None:
    lines = list(range(2, 260, 2))
    begin(batches, lines)
    for line in reversed(lines):
        end(batches, line, AttemptState.DONE if line % 4 else AttemptState.FAILED)
    results = BatchResults(batches.engine)
    assert list(results.lines(BATCH)) == lines
    assert results.ended_lines(BATCH, 5, 9) == [6, 8]
    assert results.unhappy_lines(BATCH, 250) == [252, 256]
    done = list(results.read_all(BATCH, [JobState.DONE]))
    assert [job.custom_id for job in done] == [f"c{line}" for line in lines if line % 4]
    assert (done[0].model, done[0].text, done[0].cached_tokens) == ("smollm2", "It is what it is.", 16)
    batch = batch_of(endpoint=Endpoint.CHAT)
    assert len(list(output_lines(batches, batch))) == len(done)
    assert len(list(error_lines(batches, batch))) == len(lines) - len(done)
