"""Completions that end otherwise: refused, failed, given up, turned away, stopped; each with its status."""

import threading
import time
from typing import Any

import httpx2
import openai
import pytest
import redis

from tests.serving.conftest import Serve
from tests.serving.scripted import SAYS_HELLO, scripted, turned_away, wait_for_worker
from tests.worker.fakes import ENDLESS, ScriptedRunner, eventually
from worker.records import JobState
from worker.sql.store import JobStore

BAD: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages", "at least one message"),
    ({"messages": SAYS_HELLO, "temperature": 3}, "temperature", "less than or equal to 2"),
    ({"messages": SAYS_HELLO, "tenant": "other"}, None, "unknown field"),
    ({"messages": SAYS_HELLO, "n": 17}, "n", "less than or equal to 16"),
    ({"messages": SAYS_HELLO, "stream": "yes"}, "stream", "must be true or false"),
]


def test_what_cannot_be_served_is_an_error_object(
    connection: redis.Redis, sqlite_store: JobStore, serving: Serve
) -> None:
    with scripted(connection, sqlite_store), serving() as served:
        wait_for_worker(sqlite_store)
        url = f"{served.url}/v1/chat/completions"
        for body, param, message in BAD:
            response = httpx2.post(url, json=body)
            error = response.json()["error"]
            assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
            assert message in error["message"]
        for content, message in ((b"{", "not JSON"), (b"\xff", "not UTF-8"), (b"[" * 100_000, "not JSON")):
            response = httpx2.post(url, content=content)
            assert response.status_code == 400
            assert message in response.json()["error"]["message"]
        assert httpx2.post(url, content=b" " * 3_000_000).status_code == 413
        assert httpx2.get(url).status_code == 405
        assert httpx2.get(f"{served.url}/nothing").json()["error"]["message"] == "GET /nothing is not served"
        with pytest.raises(openai.NotFoundError, match="'nobody' is not served here; scripted is"):
            served.client().models.retrieve("nobody")
        assert sqlite_store.state_counts() == ()


@pytest.mark.parametrize("stream", [False, True])
def test_job_that_fails_is_an_error_with_its_status(
    connection: redis.Redis, sqlite_store: JobStore, serving: Serve, stream: bool
) -> None:
    with scripted(connection, sqlite_store), serving() as served:
        wait_for_worker(sqlite_store)
        client = served.client()
        with pytest.raises(openai.BadRequestError, match="20000") as long:
            client.completions.create(model="scripted", prompt="x" * 20_000, stream=stream)
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError) as other:
            client.completions.create(model="other", prompt="x", stream=stream)
        assert other.value.code == "model_not_found"


def test_error_within_a_stream_ends_it(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    with scripted(connection, sqlite_store, ScriptedRunner(step_seconds=0.01)), serving() as served:
        wait_for_worker(sqlite_store)
        stream = served.client().completions.create(model="scripted", prompt=ENDLESS, max_tokens=10_000, stream=True)
        first = next(iter(stream))
        (job_id,) = [first.id.removeprefix("cmpl-")]
        connection.zadd("pagemill:cancelling", {job_id: time.time() + 60})
        with pytest.raises(openai.APIError, match="the job was cancelled"):
            list(stream)


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_goes_away_cancels_its_job(
    connection: redis.Redis, sqlite_store: JobStore, serving: Serve, stream: bool
) -> None:
    def ask() -> None:
        body = {"model": "scripted", "prompt": ENDLESS, "max_tokens": 16_000, "stream": stream}
        with httpx2.stream("POST", f"{served.url}/v1/completions", json=body, timeout=1.0) as response:
            for _ in response.iter_lines():
                return

    with scripted(connection, sqlite_store, ScriptedRunner(step_seconds=0.01)), serving() as served:
        wait_for_worker(sqlite_store)
        if stream:
            ask()
        else:
            with pytest.raises(httpx2.ReadTimeout):
                ask()
        eventually(lambda: [count.state for count in sqlite_store.state_counts()] == [JobState.CANCELLED])


def test_answer_that_takes_too_long_is_a_time_out(
    connection: redis.Redis, sqlite_store: JobStore, serving: Serve
) -> None:
    with (
        scripted(connection, sqlite_store, ScriptedRunner(step_seconds=0.01)),
        serving(serve_timeout_seconds=0.5) as served,
    ):
        wait_for_worker(sqlite_store)
        with pytest.raises(openai.APIStatusError) as late:
            served.client().completions.create(model="scripted", prompt=ENDLESS, max_tokens=16_000)
        assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")


def test_without_a_worker_there_is_no_service(serving: Serve, connection: redis.Redis) -> None:
    with serving() as served:
        with pytest.raises(openai.APIStatusError, match="no worker is running") as refused:
            served.client().chat.completions.create(model="m", messages=SAYS_HELLO)
        assert refused.value.status_code == 503
        assert refused.value.response.headers["retry-after"] == "5"
        health = httpx2.get(f"{served.url}/healthz")
        assert (health.status_code, health.json()["problems"]) == (503, ["no worker is running"])
        assert httpx2.get(f"{served.url}/livez").status_code == 200
        metrics = httpx2.get(f"{served.url}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert 'pagemill_fleet_workers{state="running"} 0.0\n' in metrics.text
        assert metrics.headers["content-type"].startswith("application/openmetrics-text")
        assert connection.llen("rq:queue:default") == 0


def test_request_waits_for_a_worker_that_comes(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    answers = []
    with serving(serve_worker_wait_seconds=30) as served:
        asking = threading.Thread(
            target=lambda: answers.append(served.client().completions.create(model="scripted", prompt="a"))
        )
        asking.start()
        with scripted(connection, sqlite_store):
            asking.join(30)
    assert answers[0].choices[0].text == "<a>"


def test_full_queue_and_full_service_are_429(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    runner = ScriptedRunner(step_seconds=0.01)
    with (
        scripted(connection, sqlite_store, runner, max_jobs=1),
        serving(serve_max_waiting=1, serve_max_requests=2) as served,
    ):
        wait_for_worker(sqlite_store)
        client = served.client()
        endless: Any = {"model": "scripted", "prompt": ENDLESS, "max_tokens": 16_000, "stream": True}
        streams = [client.completions.create(**endless), client.completions.create(**endless)]
        with pytest.raises(openai.RateLimitError, match="2 requests are being answered") as full:
            client.completions.create(model="scripted", prompt="a")
        assert full.value.response.headers["retry-after"] == "1"
        streams[0].close()
        eventually(lambda: "the queue is full" in str(turned_away(client)))  # as soon as there is a seat
        streams[1].close()


def test_stop_lets_requests_finish_and_tells_the_others(
    connection: redis.Redis, sqlite_store: JobStore, serving: Serve
) -> None:
    runner = ScriptedRunner(step_seconds=0.01)
    with scripted(connection, sqlite_store, runner), serving(drain_seconds=3.0) as served:
        wait_for_worker(sqlite_store)
        client = served.client()
        short = client.completions.create(model="scripted", prompt="a" * 100, max_tokens=1000, stream=True)
        endless = client.completions.create(model="scripted", prompt=ENDLESS, max_tokens=16_000, stream=True)
        next(iter(short))
        next(iter(endless))
        served.stop()
        assert "".join(chunk.choices[0].text for chunk in short).endswith("a>")
        with pytest.raises(openai.APIError, match="the service is being stopped"):
            list(endless)
        served.wait()
        eventually(
            lambda: {count.state for count in sqlite_store.state_counts()} == {JobState.DONE, JobState.CANCELLED}
        )


def test_outage_is_a_503_that_names_nothing(sqlite_store: JobStore, serving: Serve, connection: redis.Redis) -> None:
    with scripted(connection, sqlite_store), serving() as served:
        wait_for_worker(sqlite_store)
        client = served.client()
        client.completions.create(model="scripted", prompt="a")
        connection.config_set("maxmemory", 1)
        try:
            with pytest.raises(openai.APIStatusError, match="try again in a moment") as refused:
                client.completions.create(model="scripted", prompt="a")
        finally:
            connection.config_set("maxmemory", 0)
        assert refused.value.status_code == 503
        assert "edis" not in str(refused.value)
        ends = {JobState.DONE, JobState.CANCELLED}  # what SQL has of the second is not run for nobody
        eventually(lambda: {count.state for count in sqlite_store.state_counts()} == ends)
