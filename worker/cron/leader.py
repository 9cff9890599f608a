"""Which of all schedulers leads: one row in SQL, held for some seconds and renewed.

Leading saves the others their work; it is not what keeps a slot from firing twice. That is the row of the slot's run,
and the fence: whoever writes as leader says so in the same transaction, and fails where another has taken over.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, select, update

from worker.sql.database import reading, upserting, writing
from worker.sql.tables import LeaderRow

DUTY = "schedules"
LEASE = timedelta(seconds=10)
RENEWAL = timedelta(seconds=5)  # before its end


class NotLeader(Exception):
    """Another scheduler has taken over."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, or led last."""

    holder: str
    epoch: int
    expires_at: datetime

    def is_valid(self, now: datetime) -> bool:
        """Tell whether it leads at `now`. A lease that is longer than any is one of a clock that was set back since."""
        return now < self.expires_at <= now + LEASE


class Leadership:
    """One scheduler's claim to lead. All methods raise ServiceUnavailable; times are UTC, of the clock that all
    schedulers share."""

    def __init__(self, database: Engine, holder: str) -> None:
        self._database = database
        self._holder = holder
        self._epoch: int | None = None  # while it leads, as far as it knows

    def hold(self, now: datetime) -> bool:
        """Lead, if nobody else does; tell whether this one leads."""
        leader = current_leader(self._database)
        if leader is None or leader.holder != self._holder or leader.epoch != self._epoch:
            self._epoch = None
            if leader is not None and leader.is_valid(now):
                return False
            self._epoch = self._take(leader, now)
        elif leader.expires_at < now + RENEWAL or not leader.is_valid(now):
            with writing(self._database) as connection:
                try:
                    self.fence(connection, now)
                except NotLeader:
                    self._epoch = None
        return self._epoch is not None

    def fence(self, connection: Connection, now: datetime) -> None:
        """Renew the lease within a transaction that writes as leader. Raises NotLeader, which ends the transaction."""
        mine = (LeaderRow.duty == DUTY) & (LeaderRow.holder == self._holder) & (LeaderRow.epoch == self._epoch)
        if not connection.execute(update(LeaderRow).where(mine).values(expires_at=now + LEASE)).rowcount:
            raise NotLeader

    def leave(self, now: datetime) -> None:
        """Let another lead at once, if this one does."""
        mine = (LeaderRow.duty == DUTY) & (LeaderRow.holder == self._holder) & (LeaderRow.epoch == self._epoch)
        if self._epoch is not None:
            with writing(self._database) as connection:
                connection.execute(update(LeaderRow).where(mine).values(expires_at=now))
            self._epoch = None

    def _take(self, leader: Leader | None, now: datetime) -> int | None:
        """Lead after `leader`. Returns the epoch, None where somebody else was faster."""
        epoch = 1 if leader is None else leader.epoch + 1
        values = {"holder": self._holder, "epoch": epoch, "expires_at": now + LEASE}
        with writing(self._database) as connection:
            if leader is None:
                statement = upserting(connection, LeaderRow).values(duty=DUTY, **values)
                taken = connection.execute(statement.on_conflict_do_nothing(index_elements=[LeaderRow.duty]))
            else:
                as_read = (LeaderRow.duty == DUTY) & (LeaderRow.epoch == leader.epoch)
                taken = connection.execute(update(LeaderRow).where(as_read).values(values))
            return epoch if taken.rowcount else None


def current_leader(database: Engine) -> Leader | None:
    """Return who leads or led last; None before the first. Raises ServiceUnavailable."""
    statement = select(LeaderRow.holder, LeaderRow.epoch, LeaderRow.expires_at)
    with reading(database) as connection:
        row = connection.execute(statement.where(LeaderRow.duty == DUTY)).one_or_none()
    return None if row is None else Leader(*row)
