"""Fenced transactions happen while the fence stands, and only then, whoever else writes at the same time."""

from typing import Any

import pytest
import redis
from redis.client import Pipeline

from worker.functions.fence import FencedRedis
from worker.functions.guard import Abandoned

FENCE = "fence"


@pytest.fixture
def fenced(queue_connection: redis.Redis) -> FencedRedis:
    """A fenced connection whose fence stands; on both servers."""
    queue_connection.hset(FENCE, "heartbeat", 0)
    return FencedRedis(queue_connection, FENCE, lambda error: False)


def watch(pipeline: Any) -> None:
    """Watch a key of the caller's own."""
    pipeline.watch("other")


def test_transaction_is_written_while_the_fence_stands(fenced: FencedRedis, queue_connection: redis.Redis) -> None:
    with fenced.pipeline() as pipeline:
        pipeline.set("a", 1)
        pipeline.set("b", 2)
        assert pipeline.execute() == [True, True]
        assert pipeline.execute() == []
    assert queue_connection.mget("a", "b") == [b"1", b"2"]


@pytest.mark.parametrize("watches", [False, True])
def test_nothing_is_written_without_the_fence(
    fenced: FencedRedis, queue_connection: redis.Redis, watches: bool
) -> None:
    queue_connection.delete(FENCE)
    with fenced.pipeline() as pipeline:
        pipeline.set("a", 1)
        with pytest.raises(Abandoned):
            watch(pipeline) if watches else pipeline.execute()
    assert not queue_connection.exists("a")
    assert queue_connection.ping(), "no connection is left in the middle of something"


class Interloper:
    """Writes between a pipeline's look at its fence and its commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *writes: Any) -> None:
        self.writes = list(writes)
        commit = Pipeline._execute_transaction

        def interrupted(pipeline: Any, *arguments: Any) -> Any:
            if self.writes:
                self.writes.pop(0)()
            return commit(pipeline, *arguments)

        monkeypatch.setattr(Pipeline, "_execute_transaction", interrupted)


def test_renewals_in_between_only_delay(
    fenced: FencedRedis, queue_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals = [lambda: queue_connection.hincrby(FENCE, "heartbeat", 1)] * 3
    interloper = Interloper(monkeypatch, *renewals)
    with fenced.pipeline() as pipeline:
        pipeline.incr("a")
        assert pipeline.execute() == [1]
    assert not interloper.writes
    assert queue_connection.hget(FENCE, "heartbeat") == b"3"


def test_fence_that_falls_in_between_stops_the_commit(
    fenced: FencedRedis, queue_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Interloper(monkeypatch, lambda: queue_connection.delete(FENCE))
    with fenced.pipeline() as pipeline:
        pipeline.incr("a")
        with pytest.raises(Abandoned):
            pipeline.execute()
    assert not queue_connection.exists("a")


def test_watched_keys_are_still_the_callers_affair(
    fenced: FencedRedis, queue_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Interloper(monkeypatch, lambda: queue_connection.set("other", 1))
    with fenced.pipeline() as pipeline:
        watch(pipeline)
        pipeline.multi()
        pipeline.incr("a")
        with pytest.raises(redis.WatchError):
            pipeline.execute()
    assert not queue_connection.exists("a")
