"""Transactions that happen only while an execution has its lease.

RQ ends a job in transactions of its own making. On a fenced connection each of them watches the execution's record,
which goes with the lease: whoever lost the job meanwhile writes nothing.
"""

from collections.abc import Callable
from typing import Any

import redis
from redis.client import Pipeline
from redis.exceptions import WatchError

from worker.errors import PagemillError, ServiceUnavailable, TryLater
from worker.functions.guard import Abandoned
from worker.queue.connection import redis_errors

LOST = (redis.ConnectionError, redis.TimeoutError)  # no reply: nobody knows whether it was done


class FencedRedis(redis.Redis):
    """A connection whose pipelines are fenced. It shares another one's pool, and never closes it."""

    def __init__(self, connection: redis.Redis, fence: str, wait_out: Callable[[PagemillError], bool]) -> None:
        """`fence` is the key that must exist. `wait_out` lets some of an outage pass; False is to give up."""
        super().__init__(connection_pool=connection.connection_pool)
        self.fence = fence
        self.wait_out = wait_out

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "FencedPipeline":
        """Return a pipeline that raises Abandoned where the fence is gone."""
        return FencedPipeline(self, transaction, shard_hint)


class FencedPipeline(Pipeline):
    """A pipeline of a FencedRedis."""

    def __init__(self, connection: FencedRedis, transaction: bool, shard_hint: str | None) -> None:
        super().__init__(connection.connection_pool, connection.response_callbacks, transaction, shard_hint)
        self._fence = connection.fence
        self._wait_out = connection.wait_out

    def watch(self, *names: Any) -> None:
        """Watch keys, and the fence. Raises Abandoned where it is gone."""
        super().watch(*names, self._fence)  # type: ignore[no-untyped-call]
        if not self.exists(self._fence):
            raise Abandoned

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Execute as a transaction. One that watches nothing of its own is repeated until it is written: where a
        renewal of the lease came between, and through outages. Its results are missing where the reply was lost."""
        if self.watching or not self.command_stack:
            return super().execute(raise_on_error)
        commands, scripts = self.command_stack, self.scripts
        may_be_written = False
        while True:
            self.command_stack, self.scripts = commands, scripts  # an attempt that fails forgets them
            try:
                with redis_errors():
                    self.watch()
                    return super().execute(raise_on_error)
            except WatchError as error:
                may_be_written = may_be_written or isinstance(error.__context__, LOST)
            except (ServiceUnavailable, TryLater) as error:
                if not self._wait_out(error):
                    raise
            except Abandoned:
                if not may_be_written:
                    raise
                return []  # this very transaction took the fence away
