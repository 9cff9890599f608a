"""A job's output as it comes: reading its streams in Redis, and putting the pieces together.

A worker that somebody watches publishes pieces with their places in the output. A job may begin again (a worker that
was stopped hands it back), and then it publishes from its beginning once more: a watcher gets each character once. The
pieces need not be complete either, for the last of them are in the job's result.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.errors import TryLater
from worker.queue.access import TokenDelta, read_delta, tokens_key
from worker.queue.ends import JobEnd, JobNotDone, results_key
from worker.records import JobState

WATCH_SECONDS = 30.0  # how long one request for tokens lasts
RENEW_SECONDS = 10.0  # between two requests
EVENTS_AT_ONCE = 1_000  # of each stream


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """What one of a job's outputs has grown by. The last piece of each has its `finish_reason`, and perhaps no text."""

    index: int  # of the output, from 0
    text: str
    finish_reason: str | None = None


class OutputTexts:
    """What a watcher has of one job's outputs."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._texts: dict[int, str] = {}  # by the output's index
        self._reasons: dict[int, str] = {}  # likewise, of those that have ended

    def take(self, delta: TokenDelta) -> Iterator[OutputPiece]:
        """Yield what a piece adds, if anything. Raises TryLater where the job began again and now answers otherwise."""
        length = len(self._texts.get(delta.index, ""))
        place = length if delta.position is None else delta.position
        if place <= length:  # else what lies before it was trimmed: the job's result has both
            yield from self._extend(delta.index, place, delta.text, delta.finish_reason)

    def finish(self, end: JobEnd) -> Iterator[OutputPiece]:
        """Yield what the job's end adds. Raises JobNotDone for one that is not done, TryLater as `take`."""
        if end.state is not JobState.DONE or end.value is None:
            raise JobNotDone(end)
        for index, output in enumerate(end.value.get("choices") or [end.value]):
            yield from self._extend(index, 0, output.get("text") or "", output.get("finish_reason"))

    def _extend(self, index: int, place: int, text: str, reason: str | None) -> Iterator[OutputPiece]:
        before, ended = self._texts.get(index, ""), self._reasons.get(index)
        known = before[place : place + len(text)]
        goes_on = ended is not None and (len(text) > len(known) or reason not in (None, ended))
        if goes_on or not text.startswith(known):
            raise TryLater(
                f"job {self._job_id} began again, and its output is not the one of which {len(before)} characters "
                "were streamed; its result has all of it"
            )
        fresh = text[len(known) :]
        self._texts[index] = before + fresh
        if reason is not None:
            self._reasons[index] = reason
        if fresh or (reason is not None and ended is None):
            yield OutputPiece(index, fresh, reason)


@dataclass(slots=True)
class LiveCursor:
    """How far the streams of one job were read: its tokens, where they are wanted, and its results."""

    job_id: str
    with_tokens: bool
    tokens_id: str = "0-0"
    results_id: str = "0-0"

    def streams(self) -> Iterator[tuple[str, str]]:
        """Yield the key of each stream and the id behind which to read it."""
        yield results_key(self.job_id), self.results_id
        if self.with_tokens:
            yield tokens_key(self.job_id), self.tokens_id


@dataclass(frozen=True, slots=True)
class LiveNews:
    """What came of one job. `may_have_ended` tells to look whether it has."""

    deltas: tuple[TokenDelta, ...]
    may_have_ended: bool


def advance(cursor: LiveCursor, streams: Mapping[str, Sequence[tuple[bytes, Mapping[bytes, bytes]]]]) -> LiveNews:
    """Move a cursor past what was read, by key, and return that."""
    results = streams.get(results_key(cursor.job_id), ())
    tokens = streams.get(tokens_key(cursor.job_id), ())
    if results:
        cursor.results_id = results[-1][0].decode()
    if tokens:
        cursor.tokens_id = tokens[-1][0].decode()
    deltas = tuple(read_delta(fields) for _, fields in tokens)
    return LiveNews(deltas, may_have_ended=bool(results) or any(delta.final for delta in deltas))


def by_key(reply: Any) -> dict[str, Any]:
    """Return XREAD's reply, which may be nothing, by key."""
    return {key.decode(): entries for key, entries in reply or ()}
