"""The commands' way to Redis."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from worker.errors import ServiceUnavailable
from worker.queue.connection import connect, redis_errors
from worker.queue.redis_url import describe_url
from worker.queue.server_errors import reply_code
from worker.settings_model import Settings


def queue_name(settings: Settings) -> str:
    """Return where the queue is, without a password."""
    url = settings.queue_url()
    return describe_url(url) if url else f"the embedded queue in {settings.data_dir}"


@contextmanager
def opened_queue(settings: Settings) -> Iterator[redis.Redis]:
    """Give a connection to Redis, the embedded one unless a URL is set, and close it afterwards.

    Errors of Redis in the block become one line for the user, with the server's code but none of a command's arguments.
    """
    connection = connect(settings.queue_url(), settings.data_dir)
    name = queue_name(settings)
    try:
        with redis_errors(name):
            yield connection
    except redis.ResponseError as error:
        raise ServiceUnavailable(f"a key in {name} is not what it should be: {reply_code(error)}") from None
    finally:
        connection.close()
