"""Jobs on their way out of an app's own transactions."""

from datetime import datetime

from sqlalchemy import FetchedValue
from sqlalchemy.orm import Mapped, mapped_column

from worker.sql.tables.base import AutoId, Base


class OutboxRow(Base):
    """A job that an app wants; it is one once the app's transaction commits. Migrations give the columns but `payload`
    and `recorded_at` defaults, in each database's own words, so that an app writes the payload alone."""

    __tablename__ = "pagemill_outbox"

    id: Mapped[AutoId]  # about the order of submission
    job_id: Mapped[str] = mapped_column(server_default=FetchedValue())
    queue: Mapped[str] = mapped_column(server_default=FetchedValue())
    payload: Mapped[str]  # the job's JSON object, unchecked
    created_at: Mapped[datetime] = mapped_column(server_default=FetchedValue())
    recorded_at: Mapped[datetime | None]  # since then it is in `jobs`; Redis may not have it yet
