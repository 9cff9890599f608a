"""Connections to Redis or Valkey, and what their failures mean to a user."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, UnixDomainSocketConnection
from redis.retry import Retry

from worker.errors import ConfigurationError, ServiceUnavailable
from worker.queue.embedded import EmbeddedServer
from worker.queue.redis_url import describe_url, parse_redis_url
from worker.queue.server_errors import as_pagemill_error

SOCKET_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 2.0


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
    return _open(parse_redis_url(url), describe_url(url))


@contextmanager
def redis_errors(address: str = "Redis") -> Iterator[None]:
    """Turn redis-py's exceptions into one-line errors for a user: TryLater for what passes by itself, such as a full
    server, else ServiceUnavailable. What tells of a fault of ours, or of a key of another type, passes unchanged."""
    try:
        yield
    except redis.RedisError as error:
        known = as_pagemill_error(error, address) or _as_outage(error, address)
        if known is None:
            raise
        raise known from None


def _as_outage(error: redis.RedisError, address: str) -> ServiceUnavailable | None:
    if isinstance(error, redis.TimeoutError):
        return ServiceUnavailable(f"{address} does not answer in time")
    if isinstance(error, redis.ConnectionError):
        return ServiceUnavailable(f"cannot reach {address}: {_one_line(error)}")
    if isinstance(error, redis.InvalidResponse):
        return ServiceUnavailable(f"{address} answers in another protocol than Redis's")
    return None


def _connect_embedded(server: EmbeddedServer) -> redis.Redis:
    options = {"connection_class": EmbeddedConnection, "server": server}
    address = f"the embedded queue in {server.paths.directory}"
    server.ensure_running()
    try:
        return _open(options, address)
    except ServiceUnavailable:  # it was told to stop just now: there will be another
        server.ensure_running()
        return _open(options, address)


def _open(options: dict[str, Any], address: str) -> redis.Redis:
    fixed = {
        "socket_timeout": SOCKET_TIMEOUT_SECONDS,
        "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
        "protocol": 2,  # no HELLO at every connect, and replies as RQ reads them
        "driver_info": None,  # nor two CLIENT SETINFO
    }
    with ExitStack() as opened:
        connection = redis.Redis.from_pool(ConnectionPool(**{**options, **fixed}))
        opened.callback(connection.close)
        try:
            with redis_errors(address):
                connection.ping()
        except redis.RedisError as error:
            raise ConfigurationError(f"redis_url: {address}: {_one_line(error)}") from None
        opened.pop_all()
    return connection


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
