"""The commands' way to Redis."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from worker.connection import connect, redis_errors
from worker.redis_url import describe_url
from worker.settings_model import Settings


def queue_name(settings: Settings) -> str:
    """Return where the queue is, without a password."""
    url = settings.queue_url()
    return describe_url(url) if url else f"the embedded queue in {settings.data_dir}"


@contextmanager
def opened_queue(settings: Settings) -> Iterator[redis.Redis]:
    """Give a connection to Redis, the embedded one unless a URL is set, and close it afterwards.

    Errors of Redis in the block become one line for the user.
    """
    connection = connect(settings.queue_url(), settings.data_dir)
    try:
        with redis_errors(queue_name(settings)):
            yield connection
    finally:
        connection.close()
