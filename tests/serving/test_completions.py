"""Chat and text completions through the official client: whole and streamed, one and several, each tenant's."""

import json

import httpx2
import openai
import pytest
import redis
from rq.job import Job

from tests.serving.conftest import Serve
from tests.serving.scripted import SAYS_HELLO, scripted, turned_away, wait_for_worker
from tests.worker.fakes import ENDLESS, EOS, ScriptedRunner, eventually
from tests.worker.test_choices import ForkedRunner, published_ends, published_outputs
from worker.queue.policy import QueuePolicy, TenantLimit
from worker.records import JobState
from worker.sql.api_keys import ApiKeys
from worker.sql.store import JobStore


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


def test_token_ids_are_told(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    with scripted(connection, sqlite_store), serving() as served:
        wait_for_worker(sqlite_store)
        body = {"prompt": "abc", "n": 2, "return_token_ids": True}
        answer = httpx2.post(f"{served.url}/v1/completions", json=body, timeout=30).json()
    assert answer["prompt_token_ids"] == [*b"abc"]
    assert [choice["token_ids"] for choice in answer["choices"]] == [[*b"<abc>", EOS]] * 2


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


def test_answer_whose_job_rq_knows(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    with scripted(connection, sqlite_store), serving(record=False, serve_queue="default") as served:
        wait_for_worker(sqlite_store)
        answer = served.client().completions.create(model="scripted", prompt="a")
        job = Job.fetch(answer.id.removeprefix("cmpl-"), connection=connection, serializer="json")
        assert job.is_finished


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
