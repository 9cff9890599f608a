"""Batches through the official client: a file in, its results out, each tenant's its own."""

import json
from typing import Any

import openai
import pytest
import redis
from openai import OpenAI

from tests.serving.conftest import Serve
from tests.worker.fakes import ScriptedRunner, eventually, make_flow, running
from worker.sql.api_keys import ApiKeys
from worker.sql.store import JobStore

ENDPOINT: Any = "/v1/completions"


def line(custom_id: str, **body: Any) -> str:
    body = {"model": "scripted", "prompt": custom_id, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body})


def create(client: OpenAI, *lines: str) -> str:
    """Send a file and make a batch of it; return its id."""
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={"for": "tests"}
    )
    assert (batch.object, batch.input_file_id, batch.metadata) == ("batch", file.id, {"for": "tests"})
    return batch.id


def has_ended(client: OpenAI, batch_id: str) -> bool:
    return client.batches.retrieve(batch_id).status in ("completed", "failed", "cancelled", "expired")


def test_batch_is_run_to_its_output_and_errors(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    with running(make_flow(connection, sqlite_store)), serving() as served:
        client = served.client()
        batch_id = create(client, line("a"), line("b", max_tokens=-1), line("c", prompt="x" * 20_000), "junk")
        eventually(lambda: has_ended(client, batch_id))
        batch = client.batches.retrieve(batch_id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (4, 1, 3)
        assert batch.completed_at is not None
        assert batch.output_file_id is not None
        assert batch.error_file_id is not None
        (done,) = map(json.loads, client.files.content(batch.output_file_id).text.splitlines())
        assert done["custom_id"] == "a"
        assert done["response"]["body"]["choices"][0]["text"] == "<a>"
        failed = [json.loads(text) for text in client.files.content(batch.error_file_id).text.splitlines()]
        assert {text["custom_id"] for text in failed} == {"b", "c", None}
        assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
        assert [listed.id for listed in client.batches.list()] == [batch_id]


def test_file_without_a_good_line_fails(serving: Serve) -> None:
    with serving() as served:
        client = served.client()
        batch_id = create(client, "junk", line("a", max_tokens=-1))
        eventually(lambda: has_ended(client, batch_id))
        batch = client.batches.retrieve(batch_id)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [error.line for error in batch.errors.data] == [1, 2]
        assert batch.output_file_id is batch.error_file_id is None


def test_batch_is_cancelled(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    runner = ScriptedRunner()
    runner.may_step.clear()
    with running(make_flow(connection, sqlite_store, runner)), serving() as served:
        client = served.client()
        batch_id = create(client, *(line(f"l{number}") for number in range(5)))
        eventually(lambda: client.batches.retrieve(batch_id).status == "in_progress")
        assert client.batches.cancel(batch_id).status in ("cancelling", "cancelled")
        runner.may_step.set()
        eventually(lambda: has_ended(client, batch_id))
        assert client.batches.retrieve(batch_id).status == "cancelled"


def test_batches_of_others_are_not_there(serving: Serve, sqlite_store: JobStore) -> None:
    keys = ApiKeys(sqlite_store._engine)
    with serving(serve_keys="required") as served:
        mine, theirs = (served.client(keys.add(tenant, None).key) for tenant in ("mine", "theirs"))
        batch_id = create(mine, line("a"))
        assert list(theirs.batches.list()) == []
        for action in (theirs.batches.retrieve, theirs.batches.cancel):
            with pytest.raises(openai.NotFoundError, match="there is no batch"):
                action(batch_id)
        file_id = mine.batches.retrieve(batch_id).input_file_id
        with pytest.raises(openai.BadRequestError, match="there is no file"):
            theirs.batches.create(input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h")
        eventually(lambda: mine.batches.retrieve(batch_id).status == "in_progress")
        assert sqlite_store.job(f"{batch_id}-000000001")


def test_what_is_no_batch_is_refused(serving: Serve) -> None:
    good: dict[str, Any] = {"input_file_id": "file-x", "endpoint": ENDPOINT, "completion_window": "24h"}
    with serving() as served:
        client = served.client()
        for change, message in (
            ({"endpoint": "/v1/embeddings"}, "endpoint: '/v1/embeddings' is not served"),
            ({"completion_window": "soon"}, "completion_window: must be like 24h"),
            ({"completion_window": "99d"}, "at most 30d"),
            ({"input_file_id": "../pagemill.db"}, "there is no file"),
            ({"metadata": {"a": "x" * 513}}, "at most 512 characters"),
            ({"extra_body": {"colour": 1}}, "unknown field 'colour'"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                client.batches.create(**{**good, **change})


def test_batch_that_was_left_is_gone_on_with(connection: redis.Redis, serving: Serve, sqlite_store: JobStore) -> None:
    with serving() as served:
        client = served.client()
        batch_id = create(client, *(line(f"l{number}") for number in range(3)))
        eventually(lambda: client.batches.retrieve(batch_id).status == "in_progress")
    with sqlite_store._engine.begin() as writer:  # as a service leaves it that is killed before it has submitted all
        writer.exec_driver_sql("UPDATE batch_files SET run_key = 'serve:x', in_progress_at = NULL")
        writer.exec_driver_sql("DELETE FROM jobs WHERE id LIKE '%2'")
    connection.flushdb()
    with running(make_flow(connection, sqlite_store)), serving() as served:
        client = served.client()
        eventually(lambda: has_ended(client, batch_id))
        counts = client.batches.retrieve(batch_id).request_counts
        assert counts is not None
        assert (counts.total, counts.completed) == (3, 3)
