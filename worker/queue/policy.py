"""What decides which job is claimed next, set by people: paused queues and limits by tenant. Kept in Redis alone.

A Redis that was wiped has forgotten both; everything else survives restarts of workers and of the server.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import redis

from worker.errors import PagemillError
from worker.jobs import IDENTIFIER
from worker.queue.access import PAUSED_KEY
from worker.queue.connection import redis_errors
from worker.queue.scripts import QueueScripts

EVERYONE = "*"  # the limit of each tenant that has none of its own
MAX_RUNNING = 1_000_000
MAX_PER_MINUTE = 1_000_000  # Redis keeps the time of each of the last minute's starts


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimit:
    """How much of all workers one tenant may have; None is no such limit.

    Raises PagemillError, naming field and bounds, for a value out of range.
    """

    max_running: int | None = None  # jobs under a lease
    per_minute: int | None = None  # starts within any 60 seconds; a job that starts again counts again

    def __post_init__(self) -> None:
        for field, most in (("max_running", MAX_RUNNING), ("per_minute", MAX_PER_MINUTE)):
            value = getattr(self, field)
            if value is not None and not 1 <= value <= most:
                raise PagemillError(f"{field}: must be from 1 to {most}, got {value}")
        if self.max_running is None and self.per_minute is None:
            raise PagemillError("max_running, per_minute: at least one of them makes a limit")


@dataclass(frozen=True, slots=True)
class TenantStatus:
    """One tenant's limit and what it has of the workers now. `limit` None is the one of `EVERYONE`, if there is one."""

    tenant: str
    limit: TenantLimit | None
    running: int  # jobs that count against max_running
    started: int  # in the last minute, as far as they count against per_minute
    parked: Mapping[str, int]  # queue -> jobs that wait for the limit

    @property
    def num_parked(self) -> int:
        """Jobs that wait for the limit, over all queues."""
        return sum(self.parked.values())


class QueuePolicy:
    """Sets and reads the policy. Errors of every method: those of `redis_errors`."""

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection
        self._scripts = QueueScripts(connection)

    def pause(self, queues: Iterable[str]) -> None:
        """Let no job of these queues start until they are resumed; running jobs go on."""
        with redis_errors():
            self._connection.sadd(PAUSED_KEY, *queues)

    def resume(self, queues: Iterable[str]) -> None:
        """Let the jobs of these queues start again."""
        with redis_errors():
            self._connection.srem(PAUSED_KEY, *queues)

    def paused(self) -> frozenset[str]:
        """Return the queues that are paused."""
        with redis_errors():
            names: Any = self._connection.smembers(PAUSED_KEY)
        return frozenset(name.decode("utf-8", "replace") for name in names)

    def is_paused(self, queue: str) -> bool:
        """Tell whether a queue is paused."""
        with redis_errors():
            return bool(self._connection.sismember(PAUSED_KEY, queue))

    def parked(self, queues: Iterable[str]) -> Mapping[str, int]:
        """Return how many jobs of each queue wait for their tenants' limits."""
        names = list(queues)
        with redis_errors(), self._connection.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.zrange(f"pagemill:parked:{name}", 0, -1)
            tenants = dict(zip(names, pipeline.execute(), strict=True))
            lists = [(name, tenant) for name in names for tenant in tenants[name]]
            for name, tenant in lists:
                pipeline.llen(f"pagemill:parked:{name}:".encode() + tenant)
            lengths = pipeline.execute()
        parked = dict.fromkeys(names, 0)
        for (name, _), length in zip(lists, lengths, strict=True):
            parked[name] += length
        return parked

    def limit(self, tenant: str, limit: TenantLimit) -> None:
        """Set a tenant's limit, or with `EVERYONE` that of all who have none of their own. Jobs that run already count.

        Raises PagemillError for a name that no tenant can have.
        """
        given = {name: value for name, value in asdict(limit).items() if value is not None}
        self._scripts.call("limit", [_checked(tenant), json.dumps(given)])

    def clear(self, tenant: str) -> bool:
        """Take a tenant's limit away; its parked jobs may start at once. Returns whether there was one."""
        return bool(self._scripts.call("limit", [_checked(tenant), ""]))

    def tenants(self) -> tuple[TenantStatus, ...]:
        """Return the tenants that have a limit, running jobs that count against one, or parked jobs, by name."""
        return tuple(sorted((_read_tenant(*entry) for entry in self._scripts.call("tenants", [])), key=_name))


def _checked(tenant: str) -> str:
    if tenant != EVERYONE and not re.fullmatch(IDENTIFIER, tenant):
        raise PagemillError(
            f"tenant: must be * or up to 128 letters, digits, '.', '_', ':' and '-', got {ascii(tenant)[:80]}"
        )
    return tenant


def _name(status: TenantStatus) -> str:
    return status.tenant


def _read_tenant(tenant: bytes, limit: bytes, running: int, started: int, *parked: Any) -> TenantStatus:
    queues = {name.decode("utf-8", "replace"): number for name, number in zip(parked[::2], parked[1::2], strict=True)}
    return TenantStatus(tenant.decode("utf-8", "replace"), _read_limit(limit), running, started, queues)


def _read_limit(text: bytes) -> TenantLimit | None:
    """Return a limit as it was set; what other hands wrote and cannot be read limits nothing."""
    try:
        fields = json.loads(text)
        return TenantLimit(max_running=fields.get("max_running"), per_minute=fields.get("per_minute"))
    except (ValueError, AttributeError, TypeError, PagemillError):
        return None
