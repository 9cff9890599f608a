"""Connections to Redis or Valkey, and what their failures mean to a user."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, UnixDomainSocketConnection, parse_url
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.retry import Retry

from worker.embedded import EmbeddedServer
from worker.errors import ConfigurationError, ServiceUnavailable, TryLater

SOCKET_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 2.0
SCHEMES = ("redis", "rediss", "unix")


class EmbeddedConnection(UnixDomainSocketConnection):
    """A connection that starts the embedded server when nobody answers, the first time or after a crash."""

    def __init__(self, *, server: EmbeddedServer, **options: Any) -> None:
        super().__init__(path=server.paths.socket_path, **options)  # type: ignore[no-untyped-call]
        self._server = server  # the pool's options hold it as well: the server lives as long as the pool

    def _connect(self) -> Any:
        try:
            return super()._connect()  # type: ignore[no-untyped-call]
        except (FileNotFoundError, ConnectionRefusedError):
            self._server.ensure_running()
            return super()._connect()  # type: ignore[no-untyped-call]


def connect(url: str | None, data_dir: Path) -> redis.Redis:
    """Return a connection that has answered a PING.

    `url` is redis://, rediss:// or unix://; None is the embedded queue of `data_dir`, started if it does not run.
    Commands are never repeated behind the caller's back: a lost reply is an error, and the scripts of this package
    can be called again.

    Raises ConfigurationError for a malformed URL and ServiceUnavailable for a server that cannot be reached; no
    message holds a password.
    """
    if url is None:
        return _connect_embedded(EmbeddedServer(data_dir))
    return _open(_parse(url), describe_url(url))


def describe_url(url: str) -> str:
    """Return a URL without its user, password and query, for messages and logs."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "(malformed URL)"
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{host or 'localhost'}{f':{port}' if port else ''}{parts.path}"


@contextmanager
def redis_errors(address: str = "Redis") -> Iterator[None]:
    """Turn redis-py's exceptions into one-line errors for a user: ServiceUnavailable, or TryLater for a full server."""
    try:
        yield
    except (AuthenticationError, AuthorizationError, NoPermissionError):
        raise ServiceUnavailable(f"{address} refuses the user name or password, or the user may not do this") from None
    except BusyLoadingError:
        raise TryLater(f"{address} is loading its data; try again in a moment") from None
    except OutOfMemoryError:
        raise TryLater(f"{address} is full (maxmemory); try again when the workers have drained it") from None
    except ReadOnlyError:
        raise ServiceUnavailable(f"{address} is a read-only replica") from None
    except redis.TimeoutError:
        raise ServiceUnavailable(f"{address} does not answer in time") from None
    except redis.ConnectionError as error:
        raise ServiceUnavailable(f"cannot reach {address}: {_one_line(error)}") from None
    except ResponseError as error:
        message = str(error)
        if message.startswith("NOAUTH"):
            raise ServiceUnavailable(f"{address} asks for a password") from None
        if message.startswith("MISCONF"):
            raise TryLater(f"{address} cannot write to its disk and refuses changes") from None
        raise


def _connect_embedded(server: EmbeddedServer) -> redis.Redis:
    options = {"connection_class": EmbeddedConnection, "server": server}
    address = f"the embedded queue in {server.paths.directory}"
    server.ensure_running()
    try:
        return _open(options, address)
    except ServiceUnavailable:  # it was told to stop just now: there will be another
        server.ensure_running()
        return _open(options, address)


def _parse(url: str) -> dict[str, Any]:
    """Return redis-py's options of a URL; never shows the URL, which may hold a password."""
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES or "://" not in url:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ConfigurationError(f"redis_url: must begin with one of {known}")
    try:
        options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError:
        raise ConfigurationError(f"redis_url: {describe_url(url)} is malformed") from None
    if scheme == "unix" and not options.get("path"):
        raise ConfigurationError("redis_url: unix:// needs the path of a socket")
    return options


def _open(options: dict[str, Any], address: str) -> redis.Redis:
    fixed = {
        "socket_timeout": SOCKET_TIMEOUT_SECONDS,
        "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
        "protocol": 2,  # no HELLO at every connect, and replies as RQ reads them
        "driver_info": None,  # nor two CLIENT SETINFO
    }
    try:
        connection = redis.Redis.from_pool(ConnectionPool(**{**options, **fixed}))
        with redis_errors(address):
            connection.ping()
    except (TypeError, redis.RedisError) as error:
        raise ConfigurationError(f"redis_url: {address}: {_one_line(error)}") from None
    return connection


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
