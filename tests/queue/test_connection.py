"""Connecting, and what failures look like: one line, no password."""

from contextlib import closing
from pathlib import Path

import pytest
import redis

from worker.errors import ConfigurationError, PagemillError, ServiceUnavailable
from worker.queue.connection import connect
from worker.queue.redis_url import describe_url

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        (f"redis://user:{SECRET}@127.0.0.1:1/0", ServiceUnavailable, "cannot reach redis://127.0.0.1:1/0: "),
        (f"rediss://:{SECRET}@127.0.0.1:1", ServiceUnavailable, "cannot reach rediss://127.0.0.1:1: "),
        (
            f"unix:///nowhere/queue.sock?password={SECRET}",
            ServiceUnavailable,
            "cannot reach unix:///nowhere/queue.sock",
        ),
        (f"http://user:{SECRET}@127.0.0.1", ConfigurationError, "redis_url: must begin with one of redis://"),
        (f"user:{SECRET}@127.0.0.1", ConfigurationError, "redis_url: must begin with one of redis://"),
        (f"redis://:{SECRET}@127.0.0.1:port", ConfigurationError, "redis_url: "),
        (f"redis://:{SECRET}@127.0.0.1:1?typo={SECRET}", ConfigurationError, "redis_url: "),
        (f"redis://:{SECRET}@127.0.0.1:1?db={SECRET}", ConfigurationError, "redis_url: "),
        (f"redis://:{SECRET}@127.0.0.1:1/{SECRET}", ConfigurationError, "redis_url: "),
        (
            f"redis://:12/{SECRET}@127.0.0.1:1",
            ConfigurationError,
            "is malformed; in a user name",
        ),
        (f"redis://:12?{SECRET}@127.0.0.1:1", ConfigurationError, "is malformed"),
        (f"redis://:12#{SECRET}@127.0.0.1:1", ConfigurationError, "is malformed"),
        (f"redis://127.0.0.1:1?ssl_ca_certs=/{SECRET}", ConfigurationError, "option 'ssl_ca_certs' in its query is"),
        (f"redis://127.0.0.1:1?typo={SECRET}", ConfigurationError, "option 'typo' in its query is unknown; known are "),
        (f"rediss://127.0.0.1:1?ssl_cert_reqs={SECRET}", ConfigurationError, "must be one of required, optional, none"),
        ("rediss://127.0.0.1:1?ssl_ca_certs=/no/ca.pem", ConfigurationError, "ssl_ca_certs: cannot read /no/ca.pem"),
        ("unix://", ConfigurationError, "redis_url: unix:// needs the path of a socket"),
    ],
)
def test_a_url_that_does_not_work_gives_one_line_without_its_password(
    tmp_path: Path, url: str, error: type[PagemillError], words: str
) -> None:
    with pytest.raises(error) as caught:
        connect(url, tmp_path)
    message = str(caught.value)
    assert words in message
    assert SECRET not in message
    assert "\n" not in message
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("password", ["", f":{SECRET}-wrong@", f"user:{SECRET}-wrong@"])
def test_a_refused_password_is_told_without_it(tmp_path: Path, password: str) -> None:
    with closing(connect(None, tmp_path)) as connection:
        connection.config_set("requirepass", SECRET)
        path = connection.connection_pool.connection_kwargs["server"].paths.socket_path
        with pytest.raises(ServiceUnavailable, match="password") as caught:
            connect(f"unix://{password}{path}", tmp_path)
        assert SECRET not in str(caught.value)
        with closing(connect(f"unix://:{SECRET}@{path}", tmp_path)) as allowed:
            assert allowed.ping()


def test_connections_do_not_repeat_commands_and_give_bytes(queue_connection: redis.Redis) -> None:
    options = queue_connection.connection_pool.connection_kwargs
    assert options["retry"].get_retries() == 0
    assert options["socket_timeout"] == 5
    queue_connection.set("x", "y")
    assert queue_connection.get("x") == b"y"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://user:{SECRET}@example.org:6380/2?x={SECRET}", "redis://example.org:6380/2"),
        (f"rediss://:{SECRET}@example.org", "rediss://example.org"),
        (f"unix://user:{SECRET}@/run/queue.sock?db=1", "unix:///run/queue.sock"),
        (f"redis://:{SECRET}@[::1", "(malformed URL)"),
        (f"redis://:1/{SECRET}@example.org", "(malformed URL)"),
        (f"redis://example.org?password={SECRET}@", "redis://example.org"),
        ("unix:///run/@queue.sock", "unix:///run/@queue.sock"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert describe_url(url) == shown
