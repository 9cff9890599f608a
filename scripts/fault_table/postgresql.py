"""Databases on a PostgreSQL server that is there already: made for a run, dropped after it."""

import os

from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

SERVER_VARIABLE = "PAGEMILL_TEST_POSTGRESQL_URL"
DEFAULT_SERVER = "postgresql://postgres@127.0.0.1:5432/postgres"


class NoServer(Exception):
    """The PostgreSQL server does not answer."""


def connect_to_server() -> Engine:
    """Return an engine on which databases can be made: PAGEMILL_TEST_POSTGRESQL_URL, or the server of this machine.

    Raises NoServer.
    """
    url = make_url(os.environ.get(SERVER_VARIABLE, DEFAULT_SERVER))
    server = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    try:
        server.connect().close()
    except OperationalError as error:
        raise NoServer(f"no PostgreSQL server: {str(error.orig).strip().splitlines()[0]}") from None
    return server


def create_database(server: Engine, name: str, *, template: str = "template1") -> str:
    """Create a database; return its URL."""
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    return server.url.set(database=name).render_as_string(hide_password=False)


def drop_database(server: Engine, name: str) -> None:
    """Drop the database, whoever is connected to it."""
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
