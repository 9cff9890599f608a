"""Live tokens: only what is settled, all of it before anybody can see the end."""

from collections.abc import Sequence
from functools import partial

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from rq.job import Job

from engine.detokenizing import Detokenizer
from engine.request import Request, RequestFigures, SamplingParams
from engine.stopping import finish_reason
from tests.worker.fakes import EOS, ScriptedRunner, ScriptError, decode, eventually, make_flow, running
from worker.client import submit
from worker.queue.access import QueueAccess
from worker.running.choices import output_text
from worker.running.growing_output import GrowingOutput
from worker.sql.store import JobStore


def request_with(output: Sequence[int], stops: tuple[str, ...] = ()) -> Request:
    return Request(
        request_id="r",
        tenant="",
        token_ids=[1, *output],
        num_prompt_tokens=1,
        params=SamplingParams(max_tokens=100, stop=stops),
        stop_ids=frozenset({EOS}),
        figures=RequestFigures(arrived_at=0.0),
    )


detokenize = Detokenizer(decode)


def settled(data: bytes, stops: tuple[str, ...] = ()) -> str:
    """Return what can be shown of an output that came at once."""
    request = request_with(data, stops)
    return GrowingOutput(request.params, detokenize).unsent(request)


@given(
    text=st.text(alphabet="ab\u00e9\u2713\U0001d11e", max_size=12),
    stops=st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=4), max_size=3),
    steps=st.lists(st.integers(1, 5), min_size=50, max_size=50),
)
def test_nothing_is_sent_that_the_output_does_not_keep(text: str, stops: list[str], steps: list[int]) -> None:
    """Whatever is sent is a prefix of all that comes, and of the output once a stop string has cut it."""
    sent, output = "", None
    data = text.encode()
    request = request_with(b"", tuple(stops))
    growing = GrowingOutput(request.params, detokenize)
    while request.num_output_tokens < len(data) and output is None:
        for byte in data[request.num_output_tokens :][: steps.pop()]:
            request.token_ids.append(byte)
            if finish_reason(request, 1000, detokenize):
                output = output_text(request, detokenize)
                break
        fresh = growing.unsent(request)
        growing.forget(len(fresh))
        sent += fresh
    assert (text if output is None else output).startswith(sent)
    if not stops:
        assert sent == text


def test_half_a_character_is_not_settled() -> None:
    assert settled("a\u2713".encode()[:-1]) == "a"
    assert settled("a\u2713".encode()) == "a\u2713"


def test_beginning_of_a_stop_string_is_not_settled() -> None:
    assert settled(b"answer: 42\nEN.", ("\nEND",)) == "answer: 42"
    assert settled(b"answer: 42\nENTER", ("\nEND",)) == "answer: 42\nENTE"
    assert settled(b"a longish", ("a long stop string",)) == "a longis"


def stream_of(connection: redis.Redis, job_id: str) -> tuple[str, list[bool]]:
    events = QueueAccess(connection).read_tokens(job_id)
    return "".join(event.delta.text for event in events), [event.delta.final for event in events]


@pytest.mark.parametrize("stop", [(), ("END",)])
def test_stream_of_a_watched_job_is_its_output(
    connection: redis.Redis, sqlite_store: JobStore, stop: tuple[str, ...]
) -> None:
    output = "\u00e9\u2713\U0001d11e " * 100
    runner = ScriptedRunner(reply=lambda _: output + "END and more", step_seconds=0.001)
    (job_id,) = submit(connection, [{"prompt": "hello", "stop": stop, "max_tokens": 2000}])
    QueueAccess(connection).watch(job_id, 60)
    with running(make_flow(connection, sqlite_store, runner)) as worker:
        eventually(lambda: Job.fetch(job_id, connection=connection, serializer="json").is_finished)
        text, finals = stream_of(connection, job_id)  # complete as soon as the job is seen to have ended
        worker.stop()
    assert text == sqlite_store.results([job_id])[job_id].text
    assert text == (output if stop else output + "END and more")
    assert finals == [False] * (len(finals) - 1) + [True]
    assert len(finals) > 2


def test_job_that_nobody_watches_has_no_stream(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, ["hello"])
    make_flow(connection, sqlite_store, ScriptedRunner(step_seconds=0.05)).run(burst=True)
    assert connection.exists(f"pagemill:tokens:{job_id}") == 0


def test_stream_of_a_job_that_is_handed_back_has_no_end(connection: redis.Redis, sqlite_store: JobStore) -> None:
    runner = ScriptedRunner(reply=lambda _: "word " * 300, step_seconds=0.001)
    (job_id,) = submit(connection, [{"prompt": "hello", "max_tokens": 2000}])
    QueueAccess(connection).watch(job_id, 60)
    with running(make_flow(connection, sqlite_store, runner)) as worker:
        eventually(lambda: stream_of(connection, job_id)[0])
        worker.stop_at_once()
    assert not any(stream_of(connection, job_id)[1])
    make_flow(connection, sqlite_store, runner, name="worker-2").run(burst=True)
    text, finals = stream_of(connection, job_id)
    assert text.endswith("word " * 300)
    assert finals[-1]


def has_ended(job: Job) -> bool:
    job.refresh()
    return job.ended_at is not None


def test_bug_in_the_detokenizer_does_not_end_other_streams(connection: redis.Redis, sqlite_store: JobStore) -> None:
    def fragile(token_ids: Sequence[int]) -> str:
        text = decode(token_ids)
        if text.startswith("b"):  # from its first token on
            raise ScriptError(text)
        return text

    bad, good = submit(connection, ["bad " * 50, "good " * 50])
    for job_id in (bad, good):
        QueueAccess(connection).watch(job_id, 60)
    runner = ScriptedRunner(reply=lambda prompt: prompt, step_seconds=0.005)
    with running(make_flow(connection, sqlite_store, runner, decode=fragile)) as worker:
        eventually(lambda: runner.steps > 50)
        runner.may_step.clear()  # until the live thread has met both, however slow the machine is
        eventually(lambda: stream_of(connection, good)[0])
        runner.may_step.set()
        for job in (Job.fetch(job_id, connection=connection, serializer="json") for job_id in (bad, good)):
            eventually(partial(has_ended, job))
        worker.stop()
    assert stream_of(connection, bad)[0] == ""
    text, finals = stream_of(connection, good)
    assert text == sqlite_store.results([good])[good].text
    assert len(finals) > 1
