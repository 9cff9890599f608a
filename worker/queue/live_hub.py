"""Following many jobs at once on one event loop: one read in Redis for all of them, however many follow."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress

import redis.asyncio
from rq.defaults import RQ_KEY_PREFIX

from worker.errors import PagemillError
from worker.queue.access import WATCHED_KEY, TokenDelta
from worker.queue.connection import redis_errors
from worker.queue.ends import JobEnd, ask_for_ends, read_ends
from worker.queue.live_output import EVENTS_AT_ONCE, RENEW_SECONDS, WATCH_SECONDS, LiveCursor, advance, by_key
from worker.queue.scripts import load_script
from worker.queue.submission import CHUNK_JOBS

BLOCK_MS = 50  # how long a read waits, and so how soon it takes a new job in
PACE_SECONDS = 0.02  # between two reads: less than a token's time
LOOK_SECONDS = 2.0  # between two looks for ends that write nothing: waiting jobs that were cancelled


class _Feed:
    """What has come of one job, for everybody here who follows it."""

    def __init__(self, job_id: str, *, with_tokens: bool) -> None:
        self.cursor = LiveCursor(job_id, with_tokens)
        self.deltas: list[TokenDelta] = []
        self.end: JobEnd | None = None
        self.error: PagemillError | None = None
        self.num_followers = 0
        self.appears_by = 0.0  # until then Redis need not know the job; seconds on the monotonic clock
        self.may_have_ended = False
        self.changed = asyncio.Event()  # another one after each change

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class LiveHub:
    """Follows jobs while somebody here wants to know. For one event loop."""

    def __init__(self, connection: redis.asyncio.Redis) -> None:
        self._connection = connection
        self._mark = connection.register_script(load_script("mark"))
        self._feeds: dict[tuple[str, bool], _Feed] = {}
        self._reader: asyncio.Task[None] | None = None

    async def follow(
        self, job_id: str, *, with_tokens: bool = True, appears_within_seconds: float = 0.0
    ) -> AsyncGenerator[TokenDelta | JobEnd]:
        """Yield what a job's worker publishes, and the job's end as the last; without tokens, only that.

        A job that Redis does not know is waited for until it `appears_within_seconds`. Raises as `redis_errors`.
        """
        feed = self._join(job_id, with_tokens=with_tokens)
        feed.appears_by = max(feed.appears_by, time.monotonic() + appears_within_seconds)
        try:
            await self._look_at([feed])
            place = 0
            while True:
                changed = feed.changed
                while place < len(feed.deltas):
                    place += 1
                    yield feed.deltas[place - 1]
                if feed.end is not None:
                    yield feed.end
                    return
                if feed.error is not None:
                    raise type(feed.error)(str(feed.error))
                await changed.wait()
        finally:
            self._leave(feed)

    async def close(self) -> None:
        """Stop reading. Whoever follows must have been cancelled."""
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader

    def _join(self, job_id: str, *, with_tokens: bool) -> _Feed:
        key = (job_id, with_tokens)
        if key not in self._feeds:
            self._feeds[key] = _Feed(job_id, with_tokens=with_tokens)
        feed = self._feeds[key]
        feed.num_followers += 1
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read(), name="pagemill-live-hub")
        return feed

    def _leave(self, feed: _Feed) -> None:
        feed.num_followers -= 1
        key = (feed.cursor.job_id, feed.cursor.with_tokens)
        if not feed.num_followers and self._feeds.get(key) is feed:
            del self._feeds[key]

    async def _read(self) -> None:
        """Read while somebody follows. An error goes to all of them: whoever follows again tries again."""
        try:
            with redis_errors():
                await self._read_on()
        except PagemillError as error:
            self._fail(error)
        except redis.RedisError as error:
            self._fail(PagemillError(f"the queue cannot be followed: {type(error).__name__}"))

    async def _read_on(self) -> None:
        look_at = time.monotonic() + LOOK_SECONDS
        renew_at = time.monotonic() + RENEW_SECONDS
        while self._feeds:
            now = time.monotonic()
            if now >= renew_at:
                renew_at = now + RENEW_SECONDS
                await self._watch(self._feeds.values())
            if now >= look_at:
                look_at = now + LOOK_SECONDS
                await self._find_ends(self._feeds.values())
            feeds = tuple(self._feeds.values())
            streams = dict(stream for feed in feeds for stream in feed.cursor.streams())
            reply = await self._connection.xread(streams, count=EVENTS_AT_ONCE, block=BLOCK_MS)  # type: ignore[arg-type]
            if reply:
                self._spread(feeds, by_key(reply))
                await asyncio.sleep(PACE_SECONDS)
            await self._find_ends(feed for feed in feeds if feed.may_have_ended)

    def _spread(self, feeds: Iterable[_Feed], streams: dict[str, object]) -> None:
        for feed in feeds:
            news = advance(feed.cursor, streams)  # type: ignore[arg-type]
            feed.may_have_ended |= news.may_have_ended
            if news.deltas:
                feed.deltas.extend(news.deltas)
                feed.tell()

    async def _look_at(self, feeds: Iterable[_Feed]) -> None:
        """Begin with jobs: have their tokens published, and see whether they have ended already."""
        feeds = list(feeds)
        with redis_errors():
            await self._watch(feeds)
            await self._find_ends(feeds)

    async def _watch(self, feeds: Iterable[_Feed]) -> None:
        job_ids = [feed.cursor.job_id for feed in feeds if feed.cursor.with_tokens]
        if job_ids:
            await self._mark(args=[RQ_KEY_PREFIX, WATCHED_KEY, WATCH_SECONDS, *job_ids])

    async def _find_ends(self, feeds: Iterable[_Feed]) -> None:
        all_feeds = [feed for feed in feeds if feed.end is None]
        for start in range(0, len(all_feeds), CHUNK_JOBS):
            chunk = all_feeds[start : start + CHUNK_JOBS]
            job_ids = [feed.cursor.job_id for feed in chunk]
            async with self._connection.pipeline(transaction=False) as pipeline:
                ask_for_ends(pipeline, job_ids)
                ends = {end.job_id: end for end in read_ends(job_ids, await pipeline.execute())}
            for feed in chunk:
                end = ends.get(feed.cursor.job_id)
                if end is not None and not (end.is_unknown and time.monotonic() < feed.appears_by):
                    feed.end, feed.may_have_ended = end, False
                    feed.tell()

    def _fail(self, error: PagemillError) -> None:
        feeds, self._feeds = self._feeds, {}
        for feed in feeds.values():
            feed.error = error
            feed.tell()
