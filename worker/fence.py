"""Transactions that happen only while an execution has its lease.

RQ ends a job in transactions of its own making. On a fenced connection each of them watches the execution's record,
which goes with the lease: whoever lost the job meanwhile writes nothing.
"""

from typing import Any

import redis
from redis.client import Pipeline
from redis.exceptions import WatchError

from worker.guard import Abandoned


class FencedRedis(redis.Redis):
    """A connection whose pipelines are fenced. It shares another one's pool, and never closes it."""

    def __init__(self, connection: redis.Redis, fence: str) -> None:
        """`fence` is the key that must exist."""
        super().__init__(connection_pool=connection.connection_pool)
        self._fence = fence

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "FencedPipeline":
        """Return a pipeline that raises Abandoned where the fence is gone."""
        return FencedPipeline(self, self._fence, transaction, shard_hint)


class FencedPipeline(Pipeline):
    """A pipeline of a FencedRedis."""

    def __init__(self, connection: redis.Redis, fence: str, transaction: bool, shard_hint: str | None) -> None:
        super().__init__(connection.connection_pool, connection.response_callbacks, transaction, shard_hint)
        self._fence = fence

    def watch(self, *names: Any) -> None:
        """Watch keys, and the fence. Raises Abandoned where it is gone."""
        super().watch(*names, self._fence)  # type: ignore[no-untyped-call]
        if not self.exists(self._fence):
            raise Abandoned

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Execute as a transaction; one that watches nothing of its own is repeated where a renewal came between."""
        if self.watching or not self.command_stack:
            return super().execute(raise_on_error)
        commands, scripts = self.command_stack, self.scripts
        while True:
            try:
                self.watch()
                return super().execute(raise_on_error)
            except WatchError:  # the pipeline has forgotten its commands
                self.command_stack, self.scripts = commands, scripts
