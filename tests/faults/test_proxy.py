"""The proxy of the fault table: what either side may do, and what the other sees of it."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from scripts.fault_table.proxy import Proxy, proxying

SECONDS = 30.0  # to wait for what must come


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """The server that the proxy stands before."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "server"))
        listener.listen()
        listener.settimeout(SECONDS)
        yield listener


@pytest.fixture
def proxy(listener: socket.socket, tmp_path: Path) -> Iterator[Proxy]:
    with proxying(listener.getsockname(), tmp_path / "proxy") as proxy:
        yield proxy


def call(proxy: Proxy, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Return the client's and the server's end of a connection on which something went both ways."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(SECONDS)
    client.connect(str(proxy.address))
    server, _ = listener.accept()
    server.settimeout(SECONDS)
    client.sendall(b"question")
    assert server.recv(100) == b"question"
    server.sendall(b"answer")
    assert client.recv(100, socket.MSG_PEEK) == b"answer"
    return client, server


@pytest.mark.parametrize("is_read", [True, False])
def test_server_sees_that_a_client_hung_up(proxy: Proxy, listener: socket.socket, is_read: bool) -> None:
    """One that leaves a reply unread resets its connection, and does not end it."""
    client, server = call(proxy, listener)
    with closing(server):
        if is_read:
            client.recv(100)
        client.close()
        assert server.recv(100) == b""


def test_both_see_a_cut(proxy: Proxy, listener: socket.socket) -> None:
    client, server = call(proxy, listener)
    with closing(client), closing(server):
        proxy.cut()
        assert server.recv(100) == b""
        assert client.recv(100) == b"answer"
        assert client.recv(100) == b""


def test_client_sees_that_its_reply_is_lost(proxy: Proxy, listener: socket.socket) -> None:
    client, server = call(proxy, listener)
    with closing(client), closing(server):
        client.recv(100)
        proxy.lose_replies_to.append(b"pay")
        client.sendall(b"pay 5")
        assert server.recv(100) == b"pay 5"
        server.sendall(b"paid")
        assert client.recv(100) == b""
        assert server.recv(100) == b""
        assert not proxy.lose_replies_to
