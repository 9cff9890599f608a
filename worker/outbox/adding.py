"""The app's side of the outbox: one INSERT, through whatever connection the app's transaction is on."""

import json
from typing import Any
from uuid import uuid4

from worker.errors import InvalidJob, PagemillError
from worker.queue.submission import DEFAULT_QUEUE, JOB_ID, JOB_ID_RULE, PromptLike, valid_payload
from worker.settings_types import QUEUE_PATTERN, QUEUE_RULE

COLUMNS = ("job_id", "queue", "payload")
INSERT = f"INSERT INTO pagemill_outbox ({', '.join(COLUMNS)}) VALUES "
STATEMENTS = {  # by the DB-API's name for how a driver writes its parameters
    "qmark": f"{INSERT}(?, ?, ?)",
    "format": f"{INSERT}(%s, %s, %s)",
    "pyformat": f"{INSERT}(%s, %s, %s)",
    "numeric_dollar": f"{INSERT}($1, $2, $3)",
}


def row(job: PromptLike, *, queue: str = DEFAULT_QUEUE, job_id: str | None = None) -> dict[str, str]:
    """Validate a job and return the columns of its row, for an INSERT of the app's own.

    Raises InvalidJob for a job that breaks a rule, and for what is no queue's name or no job's id.
    """
    if not QUEUE_PATTERN.fullmatch(queue):
        raise InvalidJob("queue", f"must be {QUEUE_RULE}, got {queue!r}")
    if job_id is not None and not JOB_ID.fullmatch(job_id):
        raise InvalidJob("job_id", f"must be {JOB_ID_RULE}, got {job_id!r}")
    return {"job_id": job_id or uuid4().hex, "queue": queue, "payload": json.dumps(valid_payload(job))}


def add(connection: Any, job: PromptLike, *, queue: str = DEFAULT_QUEUE, job_id: str | None = None) -> str:
    """Add a job to the outbox in the transaction that `connection` is in, and return its id. Commits nothing.

    `connection` is SQLAlchemy's Connection or Session, psycopg's connection or cursor, or sqlite3's. An asyncio
    session of SQLAlchemy's does it with `await session.run_sync(outbox.add, job)`. With a `job_id` of its own, an app
    may add the same job again: it is there once.

    Raises as `row`, and what the driver raises.
    """
    columns = row(job, queue=queue, job_id=job_id)
    values = tuple(columns[name] for name in COLUMNS)
    package = type(connection).__module__.partition(".")[0]
    if hasattr(connection, "exec_driver_sql") or hasattr(connection, "get_bind"):
        _add_through_sqlalchemy(connection, values)
    elif package == "sqlite3":
        connection.execute(STATEMENTS["qmark"], values)
    elif package == "psycopg":
        connection.execute(STATEMENTS["format"], values)
    else:
        raise PagemillError(
            f"connection: {type(connection).__name__} is none of psycopg's, sqlite3's or SQLAlchemy's; "
            "insert the columns of `outbox.row(job)` into pagemill_outbox yourself"
        )
    return columns["job_id"]


def _add_through_sqlalchemy(connection: Any, values: tuple[str, ...]) -> None:
    driver = connection if hasattr(connection, "exec_driver_sql") else connection.connection()
    driver.exec_driver_sql(STATEMENTS[driver.dialect.paramstyle], values)
