"""The embedded server's life, with real processes and real signals."""

import fcntl
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import redis

from worker.errors import ConfigurationError, ServiceUnavailable
from worker.queue import embedded
from worker.queue.connection import connect
from worker.queue.embedded import EmbeddedServer, QueuePaths, embedded_url, find_server
from worker.queue.embedded_supervisor import CLIENTS_LOCK, SERVER_LOCK, SERVER_LOG, Answer, ask, open_lock, try_lock

ROOT = Path(__file__).resolve().parents[2]
CLIENT = """
import sys
from pathlib import Path
from worker.queue.connection import connect
connection = connect(None, Path(sys.argv[1]))
connection.incr("clients")
print(connection.info("server")["process_id"], flush=True)
sys.stdin.read()
"""


def poll(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds; fail after 20 seconds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def is_over(data_dir: Path) -> bool:
    """Tell whether neither a server nor a supervisor of the folder is left."""
    lock = open_lock(QueuePaths.of(data_dir).directory / SERVER_LOCK)
    try:
        return try_lock(lock, fcntl.LOCK_EX)
    finally:
        os.close(lock)


def answers(data_dir: Path) -> bool:
    return ask(QueuePaths.of(data_dir).socket_path) is Answer.READY


@contextmanager
def client_process(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that uses the folder's queue until its standard input is closed."""
    command = [sys.executable, "-c", CLIENT, str(data_dir)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def server_pid(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the parent-death signal of Linux")


def test_a_killed_client_takes_its_server_along_and_the_data_stay(tmp_path: Path) -> None:
    with client_process(tmp_path) as process:
        server_pid(process)
        assert answers(tmp_path)
        process.send_signal(signal.SIGKILL)
        poll(lambda: is_over(tmp_path), "the server's end")
    assert not answers(tmp_path)
    with closing(connect(None, tmp_path)) as connection:
        assert connection.get("clients") == b"1"


def test_processes_that_race_to_start_share_one_server(tmp_path: Path) -> None:
    with client_process(tmp_path) as one, client_process(tmp_path) as two, client_process(tmp_path) as three:
        assert len({server_pid(process) for process in (one, two, three)}) == 1
        one.kill()
        two.kill()
        with closing(connect(None, tmp_path)) as connection:
            assert connection.get("clients") == b"3"


def test_threads_that_race_to_start_share_one_server(tmp_path: Path) -> None:
    pids: list[int] = []

    def use() -> None:
        with closing(connect(None, tmp_path)) as connection:
            pids.append(connection.info("server")["process_id"])

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 4
    assert len(set(pids)) == 1


def test_the_server_ends_with_the_last_connection_object(tmp_path: Path) -> None:
    connection = connect(None, tmp_path)
    other = connect(None, tmp_path)
    connection.close()
    del connection
    gc.collect()
    assert other.ping()
    other.close()
    del other
    gc.collect()
    poll(lambda: is_over(tmp_path), "the server's end")


def test_a_client_that_comes_while_the_server_goes_down_gets_a_new_one(tmp_path: Path) -> None:
    paths = QueuePaths.of(tmp_path)
    paths.prepare()
    going_down = open_lock(paths.directory / CLIENTS_LOCK)
    assert try_lock(going_down, fcntl.LOCK_EX)  # as the supervisor does from its decision to its end
    connected: list[bool] = []

    def use() -> None:
        with closing(connect(None, tmp_path)) as connection:
            connected.append(connection.ping())

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    os.close(going_down)
    thread.join()
    assert connected == [True]


@linux_only
def test_a_killed_supervisor_takes_its_server_along_and_clients_get_a_new_one(tmp_path: Path) -> None:
    with closing(connect(None, tmp_path)) as connection:
        connection.set("kept", "yes")
        connection.waitaof(1, 0, 2000)
        old = connection.info("server")["process_id"]
        os.kill(parent_of(old), signal.SIGKILL)
        assert value_of_another_server(connection, old) == b"yes"


def test_a_killed_server_is_started_again(tmp_path: Path) -> None:
    with closing(connect(None, tmp_path)) as connection:
        connection.set("kept", "yes")
        connection.waitaof(1, 0, 2000)
        old = connection.info("server")["process_id"]
        os.kill(old, signal.SIGKILL)
        assert value_of_another_server(connection, old) == b"yes"


@linux_only
def test_sigterm_ends_supervisor_and_server_in_order(tmp_path: Path) -> None:
    with closing(connect(None, tmp_path)) as connection:
        connection.set("kept", "yes")
        os.kill(parent_of(connection.info("server")["process_id"]), signal.SIGTERM)
        poll(lambda: is_over(tmp_path), "the server's end")
        with closing(connect(None, tmp_path)) as another:
            assert another.get("kept") == b"yes"


def value_of_another_server(connection: redis.Redis, old: int) -> object:
    """Read a key once another server than `old` answers, trying again as a worker does."""

    def is_another() -> bool:
        with suppress(redis.ConnectionError, ServiceUnavailable):
            return bool(connection.info("server")["process_id"] != old)
        return False

    poll(is_another, "the new server")
    return connection.get("kept")


def test_a_long_data_folder_has_its_socket_in_the_temporary_folder(tmp_path: Path) -> None:
    data_dir = tmp_path / ("long" * 30)
    with closing(connect(None, data_dir)) as connection:
        connection.set("kept", "yes")
        socket_path = Path(QueuePaths.of(data_dir).socket_path)
        assert not socket_path.is_relative_to(data_dir)
        assert socket_path.parent.stat().st_mode & 0o777 == 0o700
        with closing(redis.Redis.from_url(embedded_url(data_dir))) as tool:
            assert tool.get("kept") == b"yes"
        assert (data_dir / "queue" / "appendonlydir").is_dir()
    shutil.rmtree(socket_path.parent)


def test_a_folder_name_with_odd_characters_works(tmp_path: Path) -> None:
    data_dir = tmp_path / "a \"b\" 'c' \\ #ü%20"
    with closing(connect(None, data_dir)), closing(redis.Redis.from_url(embedded_url(data_dir))) as tool:
        assert tool.ping()


def test_a_stale_socket_file_is_no_obstacle(tmp_path: Path) -> None:
    paths = QueuePaths.of(tmp_path)
    paths.prepare()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(paths.socket_path)
    with closing(connect(None, tmp_path)) as connection:
        assert connection.ping()


def test_others_can_neither_read_the_files_nor_connect(tmp_path: Path) -> None:
    with closing(connect(None, tmp_path)) as connection:
        connection.set("x", "y")
        directory = QueuePaths.of(tmp_path).directory
        assert directory.stat().st_mode & 0o777 == 0o700
        assert [path.name for path in directory.rglob("*") if path.stat().st_mode & 0o077] == []
        assert connection.config_get("port")["port"] == "0"
        assert connection.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert connection.config_get("appendfsync")["appendfsync"] == "everysec"


def test_a_server_that_cannot_start_is_reported_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_server", lambda: Path("/bin/false"))
    with pytest.raises(ServiceUnavailable, match="the server ended with status 1") as caught:
        connect(None, tmp_path)
    assert SERVER_LOG in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_machine_without_a_server_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded, "CARRIER_PACKAGE", "no_such_package")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="install no_such_package"):
        find_server()


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server on the PATH")
def test_a_redis_server_of_the_path_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded, "CARRIER_PACKAGE", "no_such_package")
    assert find_server().name in ("valkey-server", "redis-server")
    with closing(connect(None, tmp_path)) as connection:
        assert connection.set("x", "y")


def test_a_data_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="data folder: cannot use"):
        EmbeddedServer(tmp_path / "file")
