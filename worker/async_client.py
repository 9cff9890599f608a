"""The producer's side for asyncio programs: what `worker.client` does, and as light to import.

async with AsyncClient("redis://localhost:6379/0") as client:
    job_id = await client.submit("Why is the sky blue?", max_tokens=64)
    async for text in client.stream(job_id):
        print(text, end="")
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import redis.asyncio

from worker.client import Client, JobEnd, NewJob, PromptLike, not_ended, prepare
from worker.errors import ConfigurationError
from worker.queue.async_connection import open_async
from worker.queue.connection import redis_errors
from worker.queue.ends import ask_for_ends, read_ends
from worker.queue.live_hub import LiveHub
from worker.queue.live_output import OutputPiece, OutputTexts
from worker.queue.submission import CHUNK_JOBS, DEFAULT_QUEUE, payload_of

SHORTEST_WAIT_SECONDS = 0.02  # between two questions for ends
LONGEST_WAIT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an entered client works with. Submission runs in threads, for it may write to SQL first, through a driver
    that waits; all else is asyncio's."""

    client: Client
    connection: redis.asyncio.Redis
    hub: LiveHub


class AsyncClient:
    """A producer's connections, for one event loop. To be entered: `async with AsyncClient(...) as client`.

    A task that is cancelled while it submits may have submitted: who has to know settles the ids first
    (`jobs = prepare([...])`, then `enqueue(jobs)` as often as it takes).
    """

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        data_dir: Path | None = None,
        database_url: str | None = None,
        queue: str = DEFAULT_QUEUE,
    ) -> None:
        """Take what `worker.client.Client` takes; connects when it is entered, and raises then."""
        self._open_client = partial(Client, redis_url, data_dir=data_dir, database_url=database_url, queue=queue)
        self._open_connection = partial(open_async, redis_url, data_dir or Path())
        self._opened = AsyncExitStack()
        self._entered: _Parts | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            client = await asyncio.to_thread(self._open_client)
            opened.push_async_callback(asyncio.to_thread, client.close)
            connection = self._open_connection()
            opened.push_async_callback(connection.aclose)
            hub = LiveHub(connection)
            opened.push_async_callback(hub.close)
            self._entered, self._opened = _Parts(client, connection, hub), opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entered = None
        await self._opened.aclose()

    async def submit(self, job: PromptLike, **fields: Any) -> str:
        """Enqueue one job, a prompt with `fields` of PromptJob beside it, and return its id."""
        (job_id,) = await self.submit_many([job], **fields)
        return job_id

    async def submit_many(self, jobs: Iterable[PromptLike], **fields: Any) -> tuple[str, ...]:
        """Enqueue jobs, `fields` of PromptJob applied to each, and return their ids in order."""
        return await self.enqueue(prepare({**payload_of(job), **fields} for job in jobs))

    async def enqueue(self, jobs: Sequence[NewJob]) -> tuple[str, ...]:
        """Enqueue prepared jobs; see `worker.client.Client.enqueue`."""
        return await asyncio.to_thread(self._parts.client.enqueue, jobs)

    async def result(self, job_id: str) -> dict[str, Any] | None:
        """Return the result of a job that is done; None while it is not, or when it ended otherwise (see `wait`)."""
        for end in await self._ends([job_id]):
            return end.value
        return None

    async def wait(self, job_ids: Iterable[str], *, timeout_seconds: float | None = None) -> dict[str, JobEnd]:
        """Return the ends of jobs by id, waiting for all. Raises TryLater after `timeout_seconds`."""
        pending = list(dict.fromkeys(job_ids))
        found: dict[str, JobEnd] = {}
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        pause = SHORTEST_WAIT_SECONDS
        while pending:
            # Jobs end more or less in their order, as in `worker.client.ends`.
            ended = {end.job_id: end for end in await self._ends(pending[:CHUNK_JOBS])}
            found |= ended
            pending = [job_id for job_id in pending if job_id not in ended]
            pause = SHORTEST_WAIT_SECONDS if ended else min(pause * 1.5, LONGEST_WAIT_SECONDS)
            if pending and not ended:
                left = pause if deadline is None else min(pause, deadline - time.monotonic())
                if left <= 0:
                    raise not_ended(pending, timeout_seconds)
                await asyncio.sleep(left)
        return found

    async def end(self, job_id: str) -> JobEnd:
        """Return a job's end as soon as Redis tells of it. For many jobs at once, each in a task of its own."""
        async with aclosing(self._parts.hub.follow(job_id, with_tokens=False)) as news:
            async for end in news:
                assert isinstance(end, JobEnd), "nothing else comes without tokens"
                return end
        raise AssertionError("a job that is followed ends")

    async def stream(
        self, job_id: str, *, timeout_seconds: float | None = None, appears_within_seconds: float = 0.0
    ) -> AsyncGenerator[str]:
        """Yield a job's output as it is generated, of several the first; see `stream_outputs`. Who does not read to the
        end closes it: `async with aclosing(client.stream(...)) as texts`."""
        pieces = self.stream_outputs(
            job_id, timeout_seconds=timeout_seconds, appears_within_seconds=appears_within_seconds
        )
        async with aclosing(pieces):
            async for piece in pieces:
                if piece.index == 0 and piece.text:
                    yield piece.text

    async def stream_outputs(
        self, job_id: str, *, timeout_seconds: float | None = None, appears_within_seconds: float = 0.0
    ) -> AsyncGenerator[OutputPiece]:
        """Yield what each of a job's outputs grows by; see `worker.client.follow_outputs`. Any number of jobs at once
        is one read in Redis. To be closed as `stream`."""
        outputs = OutputTexts(job_id)
        loop = asyncio.get_running_loop()
        deadline = None if timeout_seconds is None else loop.time() + timeout_seconds
        news = self._parts.hub.follow(job_id, appears_within_seconds=appears_within_seconds)
        async with aclosing(news):
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        event = await anext(news)
                except TimeoutError:
                    raise not_ended([job_id], timeout_seconds) from None
                for piece in outputs.finish(event) if isinstance(event, JobEnd) else outputs.take(event):
                    yield piece
                if isinstance(event, JobEnd):
                    return

    @property
    def _parts(self) -> _Parts:
        if self._entered is None:
            raise ConfigurationError("AsyncClient: is not entered; use it in `async with AsyncClient(...) as client:`")
        return self._entered

    async def _ends(self, job_ids: Sequence[str]) -> list[JobEnd]:
        with redis_errors():
            async with self._parts.connection.pipeline(transaction=False) as pipeline:
                ask_for_ends(pipeline, job_ids)
                return read_ends(job_ids, await pipeline.execute())
