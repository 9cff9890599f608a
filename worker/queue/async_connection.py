"""Connections of asyncio programs to Redis or Valkey, for reading; as `worker.queue.connection` has them otherwise."""

from pathlib import Path
from typing import Any

import redis.asyncio
from redis.asyncio.connection import BlockingConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from worker.queue.connection import CONNECT_TIMEOUT_SECONDS, SOCKET_TIMEOUT_SECONDS
from worker.queue.embedded import embedded_url
from worker.queue.redis_url import parse_redis_url

MAX_CONNECTIONS = 16  # of one client: commands are short, and whoever finds none free waits for one


def open_async(url: str | None, data_dir: Path) -> redis.asyncio.Redis:
    """Return a connection that connects on first use; `url` None is the embedded queue of `data_dir`, which somebody
    else keeps running. Raises ConfigurationError for a malformed URL."""
    url = embedded_url(data_dir) if url is None else url
    parse_redis_url(url)  # its errors are one line, and show no secret
    options: dict[str, Any] = {
        **parse_url(url),
        "socket_timeout": SOCKET_TIMEOUT_SECONDS,
        "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
        "protocol": 2,
        "driver_info": None,
    }
    limits = {"max_connections": MAX_CONNECTIONS, "timeout": SOCKET_TIMEOUT_SECONDS}
    return redis.asyncio.Redis.from_pool(BlockingConnectionPool(**{**limits, **options}))
