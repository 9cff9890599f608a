"""What the workers can take: whether any is alive, which models they serve, how full the queue is, who is at a limit.

Looked up at most every `FRESH_SECONDS`, however many requests come.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import redis

from worker.queue.access import QueueAccess
from worker.queue.policy import EVERYONE, QueuePolicy, TenantLimit, TenantStatus
from worker.settings_model import Settings
from worker.sql.store import JobStore
from worker.worker_state import running_workers

FRESH_SECONDS = 0.5
WAITING_POLL_SECONDS = 0.25  # between two looks for a worker, where none is alive


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that living workers serve, since when, UTC."""

    name: str
    since: datetime


@dataclass(frozen=True, slots=True)
class FleetState:
    """What was found at one time."""

    models: tuple[ServedModel, ...]  # by name; none where no worker is alive
    num_workers: int
    num_waiting: int  # jobs in the queue to which requests go
    tenants: tuple[TenantStatus, ...]

    def is_at_limit(self, tenant: str) -> bool:
        """Tell whether a job of the tenant's would only wait for the tenant's own limit."""
        by_name = {status.tenant: status for status in self.tenants}
        everyone = by_name.get(EVERYONE)
        status = by_name.get(tenant)
        if status is None:
            return False
        limit = status.limit or (everyone.limit if everyone is not None else None)
        return limit is not None and _is_reached(limit, status)


def _is_reached(limit: TenantLimit, status: TenantStatus) -> bool:
    runs_all = limit.max_running is not None and status.running >= limit.max_running
    started_all = limit.per_minute is not None and status.started >= limit.per_minute
    return status.num_parked > 0 or runs_all or started_all


class Fleet:
    """Looks at the workers and the queue. For one event loop."""

    def __init__(self, settings: Settings, store: JobStore, connection: redis.Redis) -> None:
        self._settings = settings
        self._store = store
        self._queue = QueueAccess(connection)
        self._policy = QueuePolicy(connection)
        self._looking = asyncio.Lock()
        self._state: FleetState | None = None
        self._looked_at = 0.0

    async def state(self) -> FleetState:
        """Return the state, at most `FRESH_SECONDS` old. Raises ServiceUnavailable or TryLater."""
        async with self._looking:
            if self._state is None or time.monotonic() - self._looked_at > FRESH_SECONDS:
                self._state = await asyncio.to_thread(self._look)
                self._looked_at = time.monotonic()
            return self._state

    async def wait_for_workers(self, seconds: float) -> FleetState:
        """Return the state as soon as a worker is alive, and after `seconds` in any case."""
        deadline = time.monotonic() + seconds
        while True:
            state = await self.state()
            if state.num_workers or time.monotonic() >= deadline:
                return state
            await asyncio.sleep(WAITING_POLL_SECONDS)

    def _look(self) -> FleetState:
        alive = running_workers(self._store.workers(), datetime.now(UTC), self._settings)
        models: dict[str, datetime] = {}
        for worker in alive:
            since = models.get(worker.record.model, worker.record.started_at)
            models[worker.record.model] = min(since, worker.record.started_at)
        queue = self._settings.serve_queue
        return FleetState(
            models=tuple(ServedModel(name, models[name]) for name in sorted(models)),
            num_workers=len(alive),
            num_waiting=self._queue.depth([queue])[queue],
            tenants=self._policy.tenants(),
        )
