"""What all tables are made of: their common base, their column types, and what text the databases can hold."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    Enum,
    ForeignKey,
    Integer,
    MetaData,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, mapped_column

from worker.records import AttemptState, JobState

REPLACEMENT_CHARACTER = "\ufffd"


def utc_now() -> datetime:
    """Return the time in UTC, on this machine's clock."""
    return datetime.now(UTC)


def storable(text: str) -> str:
    """Return `text` with each NUL and lone surrogate replaced by U+FFFD: PostgreSQL holds neither.

    Prompts with such characters are refused before they come here; a model's output or a corrupt record may have them.
    """
    if text.isascii() and "\x00" not in text:
        return text
    text = text.replace("\x00", REPLACEMENT_CHARACTER)
    return "".join(REPLACEMENT_CHARACTER if "\ud800" <= character <= "\udfff" else character for character in text)


class StorableText(TypeDecorator[str]):
    """Text that both databases can hold; see `storable`."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


class UtcDateTime(TypeDecorator[datetime]):
    """A time-zone-aware UTC datetime on both databases; a naive one is refused with ValueError."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} has no time zone; times are stored in UTC")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def text_enum(states: type[StrEnum], name: str = "state") -> Enum:
    """Text of the states' values with a CHECK constraint, not a native enum: adding a state is then one migration.

    `name` is the column's, and names the constraint.
    """
    return Enum(
        states,
        name=name,
        native_enum=False,
        create_constraint=True,
        length=16,
        values_callable=lambda members: [member.value for member in members],
    )


AutoId = Annotated[int, mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)]
JobKey = Annotated[str, mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)]


class Base(DeclarativeBase):
    """The tables' common base: naming of constraints, and the column type of each Python type."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        str: StorableText,
        int: BigInteger,
        float: Double,
        datetime: UtcDateTime,
        list[int]: JSON(none_as_null=True),
        list[dict[str, Any]]: JSON(none_as_null=True),
        JobState: text_enum(JobState),
        AttemptState: text_enum(AttemptState),
    }
