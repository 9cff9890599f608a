"""A password in a URL never shows: not in what a command prints, whatever goes wrong, nor in a worker's log."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from urllib.parse import quote

import click
import pytest
import redis
from sqlalchemy import make_url

from tests.cli.conftest import Run, all_commands
from worker.errors import ExitCode

PLAIN = "s3cr3t-of-redis"
ODD = "p@ss/w?rd#%:&=+ü"  # what has to be escaped in a URL
ESCAPED = quote(ODD, safe="")
ENDLESS = ("cron", "scheduler")  # goes on until it is told to stop
NOT_OURS = "192.0.2.1:1"  # an address of documentation's: nobody can listen there
SIGNS = (PLAIN, ODD, ESCAPED, "p@ss", "w?rd", "p%40ss", "rd#")

REDIS_URLS = {
    "unreachable": "redis://user:{}@127.0.0.1:1/0",
    "no user": "redis://:{}@127.0.0.1:1/0",
    "password in the query": "redis://127.0.0.1:1/0?username=user&password={}",
    "no such socket": "unix://user:{}@/nowhere/queue.sock",
    "socket, password in the query": "unix:///nowhere/queue.sock?password={}",
    "unknown host": "redis://user:{}@no-such-host.invalid:6379",
    "TLS": "rediss://user:{}@127.0.0.1:1?ssl_password={}",
    "TLS with a missing file": "rediss://user:{}@127.0.0.1:1?ssl_ca_certs=/nowhere/ca.pem",
    "wrong scheme": "http://user:{}@127.0.0.1:1",
    "no scheme": "user:{}@127.0.0.1:1",
    "bad port": "redis://user:{}@127.0.0.1:port",
    "port out of range": "redis://user:{}@127.0.0.1:99999",
    "bad address": "redis://user:{}@[::1",
    "unknown option": "redis://user:{}@127.0.0.1:1?typo={}",
    "bad value": "redis://user:{}@127.0.0.1:1?db={}",
    "bad database": "redis://user:{}@127.0.0.1:1/{}",
    "only the password": "{}",
}
DATABASE_URLS = {
    "unreachable": "postgresql://user:{}@127.0.0.1:1/pagemill",
    "password in the query": "postgresql://127.0.0.1:1/pagemill?user=user&password={}",
    "unknown host": "postgresql://user:{}@no-such-host.invalid/pagemill",
    "no such socket": "postgresql://user:{}@/pagemill?host=/nowhere",
    "unknown option": "postgresql://user:{}@127.0.0.1:1/pagemill?typo={}",
    "bad value": "postgresql://user:{}@127.0.0.1:1/pagemill?sslmode={}",
    "a key's password": "postgresql://user:{}@127.0.0.1:1/pagemill?sslmode=require&sslpassword={}",
    "bad port": "postgresql://user:{}@127.0.0.1:port/pagemill",
    "wrong scheme": "mysql://user:{}@127.0.0.1:1/pagemill",
    "no scheme": "user:{}@127.0.0.1:1/pagemill",
    "SQLite without a file": "sqlite://user:{}@",
    "only the password": "{}",
}


def invocations() -> Iterator[tuple[str, ...]]:
    """Yield every command there is, with something for each argument that it needs."""
    for name, command in all_commands():
        if isinstance(command, click.Group):
            continue
        needed = [parameter for parameter in command.params if parameter.required]
        arguments = [parameter for parameter in needed if isinstance(parameter, click.Argument)]
        options = [parameter for parameter in needed if isinstance(parameter, click.Option)]
        yield (
            *name.split(),
            *(part for option in options for part in (option.opts[0], "1")),
            *("x" for _ in arguments),
            *(("x",) if name == "submit" else ()),
            *(("--serve-address", NOT_OURS) if name == "serve" else ()),  # it would serve until somebody ends it
            *(("--no-restart",) if any(parameter.name == "restart" for parameter in command.params) else ()),
        )


def some_invocations() -> Iterator[tuple[str, ...]]:
    """Yield one command of each group: those of a group read their settings and open their services alike."""
    yield from {arguments[0]: arguments for arguments in invocations()}.values()


@contextmanager
def terminated_soon() -> Iterator[None]:
    """Send this process SIGTERM when the command within has taken that over."""
    before = signal.getsignal(signal.SIGTERM)

    def terminate() -> None:
        while signal.getsignal(signal.SIGTERM) is before:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    yield
    thread.join()


def check(run: Run, arguments: tuple[str, ...], signs: tuple[str, ...] = SIGNS) -> int:
    """Run a command; return its exit code. It prints no secret and, where it fails, one line."""
    result = run(*arguments)
    shown = result.stdout + result.stderr
    for sign in signs:
        assert sign not in shown, arguments
    assert "Traceback" not in shown, arguments
    assert result.exit_code in {*ExitCode}, (arguments, shown)
    return int(result.exit_code)


@pytest.fixture(autouse=True)
def _no_model(environ: dict[str, str]) -> None:
    environ["PAGEMILL_MODEL"] = "/nowhere/model.gguf"


@pytest.fixture
def _sound_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema is not compared anew for each command and URL: that is a third of the time, and prints no URL."""
    monkeypatch.setattr("worker.sql.schema.find_differences", lambda connection, metadata: ())


@pytest.mark.usefixtures("_sound_schema")
@pytest.mark.parametrize("secret", [PLAIN, ESCAPED], ids=["plain", "escaped"])
@pytest.mark.parametrize("url", REDIS_URLS.values(), ids=REDIS_URLS)
def test_commands_do_not_show_the_redis_url(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, url: str, secret: str
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("PAGEMILL_REDIS_URL", url.replace("{}", secret))
    codes = {check(run, arguments) for arguments in (invocations() if secret == ESCAPED else some_invocations())}
    assert codes - {ExitCode.OK, ExitCode.JOBS_FAILED}
    for sign in SIGNS:
        assert sign not in caplog.text


@pytest.mark.parametrize("secret", [PLAIN, ESCAPED], ids=["plain", "escaped"])
@pytest.mark.parametrize("url", DATABASE_URLS.values(), ids=DATABASE_URLS)
def test_commands_do_not_show_the_database_url(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, url: str, secret: str
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("PAGEMILL_DATABASE_URL", url.replace("{}", secret))
    codes = {check(run, arguments) for arguments in (invocations() if secret == ESCAPED else some_invocations())}
    assert codes - {ExitCode.OK, ExitCode.JOBS_FAILED}
    for sign in SIGNS:
        assert sign not in caplog.text


def test_commands_do_not_show_urls_that_work(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    empty_queue: redis.Redis,
    migrated_postgresql_url: str,
) -> None:
    """Whatever there is to show is there: users with passwords, on Redis and on PostgreSQL."""
    caplog.set_level(logging.DEBUG)
    empty_queue.acl_setuser("tester", enabled=True, passwords=[f"+{ODD}"], keys="*", channels="*", categories=["+@all"])
    path = empty_queue.connection_pool.connection_kwargs["server"].paths.socket_path
    monkeypatch.setenv("PAGEMILL_REDIS_URL", f"unix://tester:{ESCAPED}@{path}")
    url = make_url(migrated_postgresql_url).set(password=ODD)
    monkeypatch.setenv("PAGEMILL_DATABASE_URL", url.render_as_string(hide_password=False))
    try:
        codes = {}
        for arguments in invocations():
            with terminated_soon() if arguments == ENDLESS else nullcontext():
                codes[arguments] = check(run, arguments)
    finally:
        empty_queue.acl_deluser("tester")
    assert codes["status",] == codes["config", "show"] == codes["submit", "x"] == ExitCode.OK
    for sign in SIGNS:
        assert sign not in caplog.text


@pytest.mark.parametrize("url", [f"redis://user:{PLAIN}@127.0.0.1:1/0", f"redis://user:{PLAIN}@127.0.0.1:1/{PLAIN}"])
def test_flags_and_files_do_not_show_what_they_hold(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    commands = [arguments for arguments in invocations() if arguments[0] in ("submit", "status", "doctor", "worker")]
    for arguments in commands:
        check(run, (*arguments, "--redis-url", url))
    (tmp_path / "pagemill.toml").write_text(f"redis_url = {url!r}\n")
    monkeypatch.delenv("PAGEMILL_REDIS_URL")
    for arguments in commands:
        check(run, arguments)
    (tmp_path / "pagemill.toml").write_text(f"redis_url = {url!r}\nredis_url = {PLAIN!r}\n")
    for arguments in commands:
        check(run, arguments)
    (tmp_path / "pagemill.toml").unlink()
    (tmp_path / "secret").write_text(url)
    monkeypatch.setenv("PAGEMILL_REDIS_URL_FILE", str(tmp_path / "secret"))
    for arguments in commands:
        check(run, arguments)
