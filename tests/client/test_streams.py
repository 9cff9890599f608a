"""Streams of the plain and of the asyncio client: the whole output, once, and every other end an error."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
import redis

from scripts.fault_table.proxy import Proxy
from tests.worker.fakes import ENDLESS, ScriptedRunner, answer, make_flow, running
from tests.worker.test_choices import ForkedRunner, published_ends, published_outputs
from worker.async_client import AsyncClient
from worker.client import Client, JobNotDone, OutputPiece, enqueue, follow, prepare, submit
from worker.errors import ConfigurationError, ServiceUnavailable, TryLater
from worker.queue.access import QueueAccess, TokenDelta
from worker.queue.embedded import embedded_url
from worker.records import JobState
from worker.sql.store import JobStore

SLOW = ScriptedRunner(reply=lambda prompt: f"{prompt} \u2713 \U0001d11e" * 20, step_seconds=0.002)
NUM_WATCHERS = 200


@pytest.fixture
def url(connection: redis.Redis, embedded_data_dir: Path) -> str:
    """The emptied queue's URL."""
    return embedded_url(embedded_data_dir)


async def read(texts: AsyncIterator[str]) -> list[str]:
    return [text async for text in texts]


def test_plain_stream_is_the_output(connection: redis.Redis, sqlite_store: JobStore, url: str) -> None:
    with running(make_flow(connection, sqlite_store, SLOW)), Client(url) as client:
        job_id = client.submit("hello", max_tokens=2000)
        texts = list(client.stream(job_id))
        assert "".join(texts) == sqlite_store.results([job_id])[job_id].text
        assert len(texts) > 3
        assert "".join(client.stream(job_id)) == "".join(texts)  # of a job that has ended, too


@pytest.mark.parametrize("is_async", [False, True])
def test_outputs_are_streamed_apart(connection: redis.Redis, sqlite_store: JobStore, url: str, is_async: bool) -> None:
    async def watch(job_id: str) -> list[OutputPiece]:
        async with AsyncClient(url) as client:
            return [piece async for piece in client.stream_outputs(job_id)]

    runner = ForkedRunner(pauses_until=lambda: published_outputs(connection) == [{0, 1, 2}])
    with running(make_flow(connection, sqlite_store, runner)), Client(url) as client:
        job_id = client.submit(ENDLESS, n=3, max_tokens=60)
        pieces = asyncio.run(watch(job_id)) if is_async else list(client.stream_outputs(job_id))
        assert "".join(client.stream(job_id)) == "0" * 60
    texts = ["".join(piece.text for piece in pieces if piece.index == index) for index in range(4)]
    assert texts == ["0" * 60, "1" * 60, "2" * 60, ""]
    order = [piece.index for piece in pieces]
    assert order != sorted(order), "one after the other is not as they come"


def test_an_output_ends_before_the_others(connection: redis.Redis, sqlite_store: JobStore, url: str) -> None:
    runner = ForkedRunner(ends_at=(1, 5), pauses_until=lambda: published_ends(connection) == [{1: "stop"}])
    with running(make_flow(connection, sqlite_store, runner)), Client(url) as client:
        pieces = list(client.stream_outputs(client.submit(ENDLESS, n=3, max_tokens=60)))
    assert "".join(piece.text for piece in pieces if piece.index == 1) == "1" * 5
    assert [(piece.index, piece.finish_reason) for piece in pieces if piece.finish_reason] == [
        (1, "stop"),
        (0, "length"),
        (2, "length"),
    ]


def test_outputs_of_which_the_best_are_kept_come_at_the_end(
    connection: redis.Redis, sqlite_store: JobStore, url: str
) -> None:
    with running(make_flow(connection, sqlite_store, ForkedRunner(step_seconds=0.002))), Client(url) as client:
        pieces = list(client.stream_outputs(client.submit(ENDLESS, n=2, best_of=4, max_tokens=30)))
    assert pieces[:2] == [OutputPiece(0, "1" * 30), OutputPiece(1, "3" * 30)]
    assert pieces[2:] == [OutputPiece(0, "", "length"), OutputPiece(1, "", "length")]


def test_an_echoed_prompt_is_streamed_before_the_output(
    connection: redis.Redis, sqlite_store: JobStore, url: str
) -> None:
    with running(make_flow(connection, sqlite_store, SLOW)), Client(url) as client:
        job_id = client.submit("hello", raw=True, echo=True, max_tokens=2000)
        texts = list(client.stream(job_id))
    assert "".join(texts) == "hello" + SLOW.reply("hello")
    assert len(texts) > 3


def test_many_streams_at_once_are_their_outputs(connection: redis.Redis, sqlite_store: JobStore, url: str) -> None:
    async def watch() -> dict[str, list[str]]:
        async with AsyncClient(url) as client:
            ids = await client.submit_many([f"job {number}" for number in range(NUM_WATCHERS)], max_tokens=2000)
            texts = await asyncio.gather(*(read(client.stream(job_id)) for job_id in ids))
            return dict(zip(ids, texts, strict=True))

    with running(make_flow(connection, sqlite_store, ScriptedRunner(step_seconds=0.01))):
        outputs = asyncio.run(watch())
    assert sorted("".join(texts) for texts in outputs.values()) == sorted(
        answer(f"job {number}") for number in range(NUM_WATCHERS)
    )
    results = sqlite_store.results(outputs)
    assert {job_id: "".join(texts) for job_id, texts in outputs.items()} == {
        job_id: result.text for job_id, result in results.items()
    }


def test_two_watchers_of_a_job_both_have_all_of_it(connection: redis.Redis, sqlite_store: JobStore, url: str) -> None:
    async def watch() -> tuple[str, list[list[str]]]:
        async with AsyncClient(url) as client:
            job_id = await client.submit("hello", max_tokens=2000)
            first = asyncio.create_task(read(client.stream(job_id)))
            async with aclosing(client.stream(job_id)) as texts:
                await anext(texts)  # and now it has begun
                return job_id, [await read(client.stream(job_id)), await first]

    with running(make_flow(connection, sqlite_store, SLOW)):
        job_id, outputs = asyncio.run(watch())
    text = sqlite_store.results([job_id])[job_id].text
    assert ["".join(output) for output in outputs] == [text, text]


def test_asyncio_client_submits_waits_and_reads(connection: redis.Redis, sqlite_store: JobStore, url: str) -> None:
    async def use() -> None:
        async with AsyncClient(url) as client:
            job_id = await client.submit("Why?", max_tokens=100)
            others = await client.submit_many(["a", "b"])
            ended = await client.wait([job_id, *others], timeout_seconds=20)
            assert {end.state for end in ended.values()} == {JobState.DONE}
            result = await client.result(job_id)
            assert result is not None
            assert result["text"] == answer("Why?")
            assert (await client.end(others[0])).value == ended[others[0]].value

    with running(make_flow(connection, sqlite_store)):
        asyncio.run(use())


@pytest.mark.parametrize("is_running", [False, True])
def test_cancelled_job_ends_its_streams_with_its_end(
    connection: redis.Redis, sqlite_store: JobStore, url: str, is_running: bool
) -> None:
    async def watch(job_id: str) -> None:
        async with AsyncClient(url) as client, asyncio.timeout(30), aclosing(client.stream(job_id)) as texts:
            if is_running:
                await anext(texts)
            asyncio.get_running_loop().call_soon(QueueAccess(connection).cancel, job_id)
            with pytest.raises(JobNotDone, match=f"job {job_id} is cancelled") as raised:
                await read(texts)
            assert raised.value.end.state is JobState.CANCELLED

    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 10_000}])
    flow = make_flow(connection, sqlite_store, ScriptedRunner(step_seconds=0.005))
    if is_running:
        with running(flow):
            asyncio.run(watch(job_id))
    else:
        asyncio.run(watch(job_id))
        with pytest.raises(JobNotDone, match="is cancelled"):
            list(follow(connection, job_id))


def test_unknown_job_is_an_end(connection: redis.Redis, url: str) -> None:
    async def watch() -> None:
        async with AsyncClient(url) as client:
            with pytest.raises(JobNotDone, match="the queue does not know it"):
                await read(client.stream("nobody"))

    asyncio.run(watch())
    with pytest.raises(JobNotDone, match="the queue does not know it"):
        list(follow(connection, "nobody"))


def test_time_outs_and_cancelled_tasks_leave_the_client_in_order(connection: redis.Redis, url: str) -> None:
    async def use() -> None:
        async with AsyncClient(url) as client:
            job_id = await client.submit("never claimed")
            for action in (
                lambda: read(client.stream(job_id, timeout_seconds=0.05)),
                lambda: client.wait([job_id], timeout_seconds=0.05),
            ):
                with pytest.raises(TryLater, match=f"1 jobs have not ended within 0.05 s, first {job_id}"):
                    await action()
            await cancel_each(
                lambda: read(client.stream(job_id)), lambda: client.wait([job_id]), lambda: client.end(job_id)
            )
            assert await client.result(job_id) is None  # the connections are in order

    asyncio.run(use())
    (job_id,) = submit(connection, ["never claimed"])
    with pytest.raises(TryLater, match=r"within 0\.05 s"):
        list(follow(connection, job_id, timeout_seconds=0.05))


async def cancel_each(*actions: Callable[[], Awaitable[object]]) -> None:
    for action in actions:
        task = asyncio.ensure_future(action())
        await asyncio.sleep(0.1)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_outage_is_told_and_a_later_try_works(connection: redis.Redis, proxy: Proxy) -> None:
    async def use() -> None:
        async with AsyncClient(proxy.url) as client:
            job_id = await client.submit("never claimed")
            streams = [asyncio.create_task(read(client.stream(job_id))) for _ in range(3)]
            await asyncio.sleep(0.1)
            proxy.cut()
            for stream in streams:
                with pytest.raises(ServiceUnavailable, match=r"^(cannot reach )?Redis"):
                    await stream
            with pytest.raises(ServiceUnavailable):
                await client.submit("no")
            with pytest.raises(ServiceUnavailable):
                await client.result(job_id)
            proxy.mend()
            assert await client.result(job_id) is None
            with pytest.raises(TryLater):
                await read(client.stream(job_id, timeout_seconds=0.05))

    asyncio.run(use())


def test_job_that_begins_again_is_streamed_once(connection: redis.Redis, sqlite_store: JobStore, url: str) -> None:
    async def watch() -> str:
        async with AsyncClient(url) as client:
            job_id = await client.submit("hello", max_tokens=2000)
            async with aclosing(client.stream(job_id)) as texts:
                with running(make_flow(connection, sqlite_store, SLOW)) as worker:
                    first = await anext(texts)
                    await asyncio.to_thread(worker.stop_at_once)
                with running(make_flow(connection, sqlite_store, SLOW, name="worker-2")):
                    return first + "".join(await read(texts))

    assert asyncio.run(watch()) == SLOW.reply("hello")


def test_job_that_is_still_in_the_outbox_is_waited_for(
    connection: redis.Redis, sqlite_store: JobStore, url: str
) -> None:
    async def watch() -> str:
        async with AsyncClient(url) as client:
            reading = asyncio.create_task(read(client.stream(job.job_id, appears_within_seconds=30)))
            await asyncio.sleep(0.2)
            await client.enqueue([job])
            return "".join(await reading)

    job, later = prepare({"prompt": prompt, "max_tokens": 2000} for prompt in ("hello", "later"))
    with running(make_flow(connection, sqlite_store, SLOW)):
        assert asyncio.run(watch()) == SLOW.reply("hello")
        timer = threading.Timer(0.2, lambda: list(enqueue(connection, [later])))
        timer.start()
        assert "".join(follow(connection, later.job_id, appears_within_seconds=30)) == SLOW.reply("later")
        timer.join()


def test_trimmed_pieces_come_with_the_end(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, ["hello"])
    QueueAccess(connection).publish_tokens({job_id: [TokenDelta("late", position=400)]})
    make_flow(connection, sqlite_store).run(burst=True)
    assert list(follow(connection, job_id)) == [answer("hello")]


def test_a_client_that_is_not_entered_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="async with AsyncClient"):
        asyncio.run(AsyncClient("redis://localhost").result("x"))


def test_watched_marks_are_renewed_only_while_somebody_follows(connection: redis.Redis, url: str) -> None:
    async def use() -> None:
        async with AsyncClient(url) as client:
            job_id = await client.submit("never claimed")
            with pytest.raises(TryLater):
                await read(client.stream(job_id, timeout_seconds=0.05))
            commands = int(connection.info("stats")["total_commands_processed"])
            await asyncio.sleep(0.3)
            assert int(connection.info("stats")["total_commands_processed"]) - commands < 5
            assert QueueAccess(connection).watched() == {job_id}

    asyncio.run(use())
