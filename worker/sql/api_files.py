"""Files of the HTTP service in SQL: what they are called and whose they are. Their contents are not here."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, RowMapping, delete, select, tuple_

from worker.sql.database import reading, upserting, writing
from worker.sql.tables import ApiFileRow


@dataclass(frozen=True, slots=True)
class ApiFile:
    """One file. `created_at` is UTC."""

    id: str
    tenant: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: datetime


class ApiFiles:
    """The files in one database. Safe to use from several threads; raises as `worker.sql.database.writing`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, file: ApiFile) -> None:
        """Write a file, in place of an earlier one of the same id."""
        row = {name: getattr(file, name) for name in ApiFile.__dataclass_fields__}
        with writing(self._engine) as connection:
            statement = upserting(connection, ApiFileRow).values(row)
            connection.execute(statement.on_conflict_do_update(index_elements=[ApiFileRow.id], set_=row))

    def find(self, tenant: str, file_id: str) -> ApiFile | None:
        """Return a tenant's file, or None."""
        is_it = (ApiFileRow.tenant == tenant) & (ApiFileRow.id == file_id)
        with reading(self._engine) as connection:
            row = connection.execute(select(ApiFileRow.__table__).where(is_it)).mappings().one_or_none()
        return None if row is None else _file(row)

    def latest(self, tenant: str, limit: int, *, purpose: str | None, after: str | None) -> list[ApiFile]:
        """Return a tenant's files, the latest first; those behind the file `after` where that is given."""
        statement = select(ApiFileRow.__table__).where(ApiFileRow.tenant == tenant)
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
        is_it = (ApiFileRow.tenant == tenant) & (ApiFileRow.id == file_id)
        with writing(self._engine) as connection:
            return connection.execute(delete(ApiFileRow).where(is_it)).rowcount > 0


def _file(row: RowMapping) -> ApiFile:
    return ApiFile(**{name: row[name] for name in ApiFile.__dataclass_fields__})
