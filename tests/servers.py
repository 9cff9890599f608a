"""Servers of a test's own: a Redis and the Valkey of the wheel, with the configuration that the test wants."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services import missing_service
from worker.queue.embedded import find_server
from worker.queue.embedded_supervisor import Answer, ask

SERVERS = ("redis-server", "valkey-server")
START_TRIES = 1000


def find_binary(name: str) -> Path:
    """Return the server's binary; skip the test where it is missing, or fail it where every service must be there."""
    found = find_server() if name == "valkey-server" else Path(shutil.which(name) or "")
    if not os.access(found, os.X_OK) or found.is_dir():
        missing_service(f"no {name}")
    return found


def knows_tls(name: str) -> bool:
    """Tell whether the server was built with TLS: asked for it without a certificate, it then names that."""
    command: list[str | Path] = [find_binary(name), "--port", "0", "--tls-port", "1"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    return "tls-cert-file" in done.stdout


@contextmanager
def running_server(name: str, folder: Path, *lines: str) -> Iterator[Path]:
    """Run a server with these lines of configuration, in `folder`; give the path of its unix socket."""
    socket_path = folder / "server.sock"
    config = folder / "server.conf"
    config.write_text("\n".join((f"unixsocket {socket_path}", f"dir {folder}", "port 0", 'save ""', *lines, "")))
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([find_binary(name), config], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        wait_until_ready(server, socket_path)
        yield socket_path
    finally:
        server.kill()
        server.wait()


def wait_until_ready(server: subprocess.Popen[bytes], socket_path: Path) -> None:
    """Return once the server listens, whether or not it lets us in."""
    for _ in range(START_TRIES):
        assert server.poll() is None, (socket_path.parent / "server.log").read_text()
        if ask(str(socket_path)) is not Answer.ABSENT:
            return
        try:
            server.wait(0.01)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("the server does not listen")
