"""Chat and text completions through the official client: whole, streamed, refused, given up."""

import json
import threading
import time
from typing import Any

import httpx2
import openai
import pytest
import redis
from rq.job import Job

from tests.serving.conftest import Serve
from tests.worker.fakes import ENDLESS, ScriptedRunner, eventually, make_flow, running
from tests.worker.test_choices import ForkedRunner, published_ends, published_outputs
from worker.jobs import PromptJob
from worker.queue.policy import QueuePolicy, TenantLimit
from worker.records import JobState
from worker.sql.api_keys import ApiKeys
from worker.sql.store import JobStore

SAYS_HELLO: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


def encode(job: PromptJob) -> list[int]:
    """Return a prompt's bytes, or those of the last message."""
    assert job.prompt or job.messages
    return list((job.prompt or (job.messages or ())[-1].text).encode())


def scripted(connection: redis.Redis, store: JobStore, runner: ScriptedRunner | None = None, **settings: Any) -> Any:
    settings = {"beat_seconds": 0.2, **settings}
    return running(make_flow(connection, store, runner, encode=encode, **settings))


def wait_for_worker(store: JobStore) -> None:
    eventually(lambda: store.workers())


def test_chat_is_answered(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    with scripted(connection, sqlite_store), serving() as served:
        wait_for_worker(sqlite_store)
        answer = served.client().chat.completions.create(model="scripted", messages=SAYS_HELLO)
        assert answer.object == "chat.completion"
        assert answer.model == "scripted"
        (choice,) = answer.choices
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "<hello>", "stop")
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 5
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        job = sqlite_store.job(answer.id.removeprefix("chatcmpl-"))
        assert job is not None
        assert (job.state, job.tenant) == (JobState.DONE, "default")
        models = served.client().models.list().data
        assert [model.id for model in models] == ["scripted"]
        assert served.client().models.retrieve("scripted").owned_by == "pagemill"


def test_chat_is_streamed(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    runner = ScriptedRunner(reply=lambda _: "one two \u2713 " * 10, step_seconds=0.005)
    with scripted(connection, sqlite_store, runner), serving() as served:
        wait_for_worker(sqlite_store)
        stream = served.client().chat.completions.create(
            model="scripted",
            messages=SAYS_HELLO,
            max_tokens=1000,
            stream=True,
            stream_options={"include_usage": True},
        )
        *chunks, last = list(stream)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 100
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two \u2713 " * 10
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert len(chunks) > 4
    assert len({chunk.id for chunk in chunks}) == 1


def test_text_is_completed_and_streamed(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    with scripted(connection, sqlite_store), serving() as served:
        wait_for_worker(sqlite_store)
        client = served.client()
        answer = client.completions.create(model="scripted", prompt="Once", max_tokens=3)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("<On", "length")
        texts = [
            chunk.choices[0].text for chunk in client.completions.create(model="scripted", prompt="a", stream=True)
        ]
        assert "".join(texts) == "<a>"
        with httpx2.stream(
            "POST", f"{served.url}/v1/completions", json={"model": "scripted", "prompt": "a", "stream": True}
        ) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert all(json.loads(line.removeprefix("data: "))["object"] == "text_completion" for line in lines[:-1])


def test_several_outputs_are_streamed(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    runner = ForkedRunner(pauses_until=lambda: published_outputs(connection) == [{0, 1, 2}])
    with scripted(connection, sqlite_store, runner), serving() as served:
        wait_for_worker(sqlite_store)
        client = served.client()
        chat = client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": ENDLESS}],
            n=3,
            max_tokens=60,
            stream=True,
            stream_options={"include_usage": True},
        )
        *chunks, last = list(chat)
        assert last.choices == []
        assert last.usage is not None
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(ENDLESS), 180)
        (choices,) = zip(*(chunk.choices for chunk in chunks), strict=True)
        for index in range(3):
            own = [choice for choice in choices if choice.index == index]
            assert own[0].delta.role == "assistant"
            assert "".join(choice.delta.content or "" for choice in own) == str(index) * 60
            assert [choice.finish_reason for choice in own if choice.finish_reason] == ["length"]
            assert own[-1].finish_reason == "length"
        order = [choice.index for choice in choices if choice.delta.content]
        assert order != sorted(order), "one after the other is not as they come"
        echoed = client.completions.create(model="scripted", prompt="abc", max_tokens=3, echo=True, stream=True)
        assert "".join(piece.choices[0].text for piece in echoed) == "abc000"
        text = client.completions.create(
            model="scripted", prompt=ENDLESS, n=2, best_of=2, max_tokens=30, stream=True, temperature=1
        )
        texts = {0: "", 1: ""}
        for piece in text:
            texts[piece.choices[0].index] += piece.choices[0].text
    assert texts == {0: "0" * 30, 1: "1" * 30}


def test_each_output_ends_when_it_does(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    runner = ForkedRunner(ends_at=(1, 5), pauses_until=lambda: published_ends(connection) == [{1: "stop"}])
    with scripted(connection, sqlite_store, runner), serving() as served:
        wait_for_worker(sqlite_store)
        chunks = served.client().chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": ENDLESS}], n=3, max_tokens=60, stream=True
        )
        choices = [chunk.choices[0] for chunk in chunks]
    ends = {choice.index: place for place, choice in enumerate(choices) if choice.finish_reason}
    assert [(index, choices[place].finish_reason) for index, place in ends.items()] == [
        (1, "stop"),
        (0, "length"),
        (2, "length"),
    ]
    assert all(choice.index != 1 for choice in choices[ends[1] + 1 :])
    texts = ["".join(one.delta.content or "" for one in choices if one.index == index) for index in range(3)]
    assert texts == ["0" * 60, "1" * 5, "2" * 60]


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


def turned_away(client: openai.OpenAI) -> openai.RateLimitError | None:
    """Return the error of a request that is turned away; None for one that is taken."""
    try:
        client.completions.create(model="scripted", prompt="a", timeout=1.0)
    except openai.RateLimitError as error:
        return error
    except openai.APITimeoutError:
        return None
    return None


def test_keys_are_tenants(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    keys = ApiKeys(sqlite_store._engine)
    new, other = keys.add("acme", None), keys.add("busy", "for tests")
    QueuePolicy(connection).limit("busy", TenantLimit(per_minute=1))
    with scripted(connection, sqlite_store), serving(serve_keys="required") as served:
        wait_for_worker(sqlite_store)
        for key in ("none", "pm-" + "x" * 43, "x" * 10_000):
            with pytest.raises(openai.AuthenticationError) as refused:
                served.client(key).models.list()
            assert refused.value.code == "invalid_api_key"
        assert httpx2.get(f"{served.url}/v1/models").json()["error"]["code"] == "missing_api_key"
        answer = served.client(new.key).completions.create(model="scripted", prompt="a")
        job = sqlite_store.job(answer.id.removeprefix("cmpl-"))
        assert job is not None
        assert job.tenant == "acme"
        served.client(other.key).completions.create(model="scripted", prompt="a")
        eventually(lambda: "your limit is reached" in str(turned_away(served.client(other.key))))
        keys.revoke(other.key_id)
    assert keys.tenant_of(other.key) is None


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


def test_answer_whose_job_rq_knows(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    with scripted(connection, sqlite_store), serving(record=False, serve_queue="default") as served:
        wait_for_worker(sqlite_store)
        answer = served.client().completions.create(model="scripted", prompt="a")
        job = Job.fetch(answer.id.removeprefix("cmpl-"), connection=connection, serializer="json")
        assert job.is_finished
