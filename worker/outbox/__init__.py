"""The outbox: submitting jobs within an app's own database transaction, in the same database as Pagemill's tables.

    with connection.transaction():                       # psycopg, sqlite3 or SQLAlchemy
        connection.execute("INSERT INTO orders ...")
        job_id = outbox.add(connection, {"prompt": "Thank the customer for ..."})

The job exists if and only if the transaction commits. `add` imports neither SQLAlchemy nor Redis; what moves committed
jobs on is in `worker.outbox.relaying`.
"""

from worker.outbox.adding import add, row

__all__ = ["add", "row"]
