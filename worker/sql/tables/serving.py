"""What the HTTP service knows besides jobs: who may use it, and the files that were sent to it."""

from datetime import datetime

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from worker.sql.tables.base import Base


class ApiKeyRow(Base):
    """A key, of which only the hash is here, and the tenant that its holder is."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)  # by which people name it; no secret
    tenant: Mapped[str]
    name: Mapped[str | None]  # what it is for
    key_hash: Mapped[str] = mapped_column(unique=True)  # SHA-256, hexadecimal
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class ApiFileRow(Base):
    """A file that a tenant sent, or that was made for it. Its content lies in the data folder, under its id."""

    __tablename__ = "api_files"
    __table_args__ = (Index(None, "tenant", "created_at"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    filename: Mapped[str]  # as its sender calls it; names nothing on our disk
    purpose: Mapped[str]
    num_bytes: Mapped[int]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]  # it is not there any more since then; None of one that stays
