"""Files of the HTTP service in SQL: what they are called and whose they are. Their contents are not here."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Engine, RowMapping, delete, func, or_, select, tuple_

from worker.errors import PagemillError
from worker.sql.database import reading, upserting, writing
from worker.sql.tables import ApiFileRow, utc_now

SENT = "batch"  # the purpose of files that tenants send
IDS_PER_STATEMENT = 500


@dataclass(frozen=True, slots=True)
class ApiFile:
    """One file. Times are UTC; it is not there any more since `expires_at`."""

    id: str
    tenant: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: datetime
    expires_at: datetime | None = None


class FileQuotaReached(PagemillError):
    """A tenant may not keep so many bytes of files."""

    def __init__(self, kept_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"the tenant keeps {kept_bytes} bytes of files, of {limit_bytes} at most")
        self.kept_bytes = kept_bytes
        self.limit_bytes = limit_bytes


class ApiFiles:
    """The files in one database. Safe to use from several threads; raises as `worker.sql.database.writing`."""

    def __init__(self, engine: Engine, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._engine = engine
        self._clock = clock

    def add(self, file: ApiFile, *, limit_bytes: int | None = None) -> None:
        """Write a file, in place of an earlier one of the same id. Raises FileQuotaReached where the tenant would keep
        more than `limit_bytes` of files that it sent."""
        row = {name: getattr(file, name) for name in ApiFile.__dataclass_fields__}
        with writing(self._engine) as connection:
            if limit_bytes is not None:
                _take_tenant_lock(connection, file.tenant)
                self._check_room(connection, file.tenant, file.num_bytes, limit_bytes)
            statement = upserting(connection, ApiFileRow).values(row)
            connection.execute(statement.on_conflict_do_update(index_elements=[ApiFileRow.id], set_=row))

    def check_room(self, tenant: str, num_bytes: int, limit_bytes: int) -> None:
        """Raise FileQuotaReached where a file of so many bytes would be too much for the tenant."""
        with reading(self._engine) as connection:
            self._check_room(connection, tenant, num_bytes, limit_bytes)

    def find(self, tenant: str, file_id: str) -> ApiFile | None:
        """Return a tenant's file, or None."""
        is_it = (ApiFileRow.tenant == tenant) & (ApiFileRow.id == file_id) & self._is_there()
        with reading(self._engine) as connection:
            row = connection.execute(select(ApiFileRow.__table__).where(is_it)).mappings().one_or_none()
        return None if row is None else _file(row)

    def latest(self, tenant: str, limit: int, *, purpose: str | None, after: str | None) -> list[ApiFile]:
        """Return a tenant's files, the latest first; those behind the file `after` where that is given."""
        statement = select(ApiFileRow.__table__).where(ApiFileRow.tenant == tenant, self._is_there())
        if purpose is not None:
            statement = statement.where(ApiFileRow.purpose == purpose)
        if after is not None:
            place = select(ApiFileRow.created_at, ApiFileRow.id).where(ApiFileRow.id == after)
            earlier = tuple_(ApiFileRow.created_at, ApiFileRow.id) < place.scalar_subquery()
            statement = statement.where(earlier)
        statement = statement.order_by(ApiFileRow.created_at.desc(), ApiFileRow.id.desc()).limit(limit)
        with reading(self._engine) as connection:
            return [_file(row) for row in connection.execute(statement).mappings()]

    def delete(self, tenant: str, file_id: str) -> bool:
        """Delete a tenant's file; returns whether there was one."""
        is_it = (ApiFileRow.tenant == tenant) & (ApiFileRow.id == file_id) & self._is_there()
        with writing(self._engine) as connection:
            return connection.execute(delete(ApiFileRow).where(is_it)).rowcount > 0

    def delete_expired(self) -> list[str]:
        """Delete some of the files that have expired; return their ids."""
        with writing(self._engine) as connection:
            ids = connection.scalars(select(ApiFileRow.id).where(~self._is_there()).limit(IDS_PER_STATEMENT)).all()
            connection.execute(delete(ApiFileRow).where(ApiFileRow.id.in_(ids)))
        return list(ids)

    def known(self, file_ids: Iterable[str]) -> set[str]:
        """Return those of the ids under which there is a file, of whatever tenant."""
        ids = sorted(file_ids)
        found: set[str] = set()
        with reading(self._engine) as connection:
            for start in range(0, len(ids), IDS_PER_STATEMENT):
                page = ids[start : start + IDS_PER_STATEMENT]
                found.update(connection.scalars(select(ApiFileRow.id).where(ApiFileRow.id.in_(page))))
        return found

    def _is_there(self) -> ColumnElement[bool]:
        return or_(ApiFileRow.expires_at.is_(None), ApiFileRow.expires_at > self._clock())

    def _check_room(self, connection: Connection, tenant: str, num_bytes: int, limit_bytes: int) -> None:
        kept = select(func.coalesce(func.sum(ApiFileRow.num_bytes), 0)).where(
            ApiFileRow.tenant == tenant, ApiFileRow.purpose == SENT, self._is_there()
        )
        kept_bytes = int(connection.scalar(kept) or 0)
        if kept_bytes + num_bytes > limit_bytes:
            raise FileQuotaReached(kept_bytes, limit_bytes)


def _take_tenant_lock(connection: Connection, tenant: str) -> None:
    """Let one transaction at a time add to a tenant's files. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"pagemill files {tenant}", 0))))


def _file(row: RowMapping) -> ApiFile:
    return ApiFile(**{name: row[name] for name in ApiFile.__dataclass_fields__})
