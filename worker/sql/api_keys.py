"""Keys of the HTTP service in SQL: kept as hashes, and good until they are revoked."""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, func, insert, select, update

from worker.sql.database import reading, writing
from worker.sql.tables import ApiKeyRow, utc_now

KEY_BYTES = 32  # of randomness: nobody guesses it, so that a plain hash keeps it
PREFIX = "pm-"


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key as it is shown once."""

    key_id: str
    tenant: str
    key: str


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key. Times are UTC."""

    key_id: str
    tenant: str
    name: str | None
    created_at: datetime
    revoked_at: datetime | None


class ApiKeys:
    """The keys in one database. Safe to use from several threads; raises as `worker.sql.database.writing`."""

    def __init__(self, engine: Engine, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._engine = engine
        self._clock = clock

    def add(self, tenant: str, name: str | None) -> NewKey:
        """Make a key for a tenant."""
        new = NewKey(f"key_{secrets.token_hex(6)}", tenant, PREFIX + secrets.token_urlsafe(KEY_BYTES))
        row = {"id": new.key_id, "tenant": tenant, "name": name, "key_hash": _hash(new.key)}
        with writing(self._engine) as connection:
            connection.execute(insert(ApiKeyRow).values({**row, "created_at": self._clock()}))
        return new

    def tenant_of(self, key: str) -> str | None:
        """Return whose key it is; None for one that was never made or is revoked."""
        is_good = (ApiKeyRow.key_hash == _hash(key)) & ApiKeyRow.revoked_at.is_(None)
        with reading(self._engine) as connection:
            return connection.scalar(select(ApiKeyRow.tenant).where(is_good))

    def all(self) -> tuple[ApiKey, ...]:
        """Return every key, the oldest first."""
        columns = (ApiKeyRow.id, ApiKeyRow.tenant, ApiKeyRow.name, ApiKeyRow.created_at, ApiKeyRow.revoked_at)
        with reading(self._engine) as connection:
            rows = connection.execute(select(*columns).order_by(ApiKeyRow.created_at, ApiKeyRow.id))
            return tuple(ApiKey(*row) for row in rows)

    def revoke(self, key_id: str) -> bool:
        """Let a key be good no more; returns whether there is one of this id. The first time of revocation stays."""
        changes = {"revoked_at": func.coalesce(ApiKeyRow.revoked_at, self._clock())}
        with writing(self._engine) as connection:
            return connection.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(changes)).rowcount > 0


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
