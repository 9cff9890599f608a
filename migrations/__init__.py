"""The database's history, one Alembic revision per change. `worker.sql.schema` and `pagemill db` run it.

To add a revision, change `worker/sql/tables`, then, from the root and on a database at the latest revision:

    alembic -c migrations/alembic.ini -x url=sqlite:///scratch.db revision --autogenerate -m "what changes"

A released revision is frozen: it imports nothing of `worker` and is never edited.
"""
