"""The database's history, one Alembic revision per change. `worker.sql.schema` and `pagemill db` run it.

To add a revision, change `worker/sql/tables`, then, from the root and on a database at the latest revision:

    alembic -c migrations/alembic.ini -x url=sqlite:///scratch.db revision --autogenerate -m "what changes"

A released revision is frozen: it imports nothing of `worker` and is never edited.

Expand, then contract. Workers and producers of the previous release go on while a database is upgraded, and are
replaced after it. So a revision only adds: tables, indexes, views, and columns that may be NULL or have a default in
the database, for the old programs do not write them. It never renames, drops or narrows what a released program reads
or writes, gives no column another meaning, and adds no constraint that an old program's rows could break. What is no
longer needed goes one release later, when no program that knows it is left. `tests/sql/test_released.py` says what
each released revision's programs say to the database that this revision makes; `tests/sql/released/freeze.py` adds to
it when a revision is released.
"""
