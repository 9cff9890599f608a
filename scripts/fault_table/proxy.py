"""A proxy in front of a server that goes away, loses replies or leads somewhere else when told to."""

import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from worker.queue.scripts import load_script

_COMMAND_HEADER = re.compile(rb"\*\d+\r\n\$\d+\r\n")

Address = str | tuple[str, int]  # a unix socket's path, or host and port


@dataclass
class Proxy:
    """What the proxy is told, and what it has done."""

    address: Address  # where it listens
    target: Address  # of the connections to come
    is_cut: bool = False  # no connection goes through
    refuse_with: bytes | None = None  # the error that every command gets instead of its answer
    num_refused: int = 0
    num_hung_up: int = 0  # connections that came while it was cut
    lose_replies_to: list[bytes] = field(default_factory=list)  # each entry loses the reply to one command with it
    open_sockets: set[socket.socket] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Its URL, before a Redis on a unix socket."""
        return f"unix://{self.address}"

    def cut(self) -> None:
        """Hang up on everybody, and on everybody who calls from here on."""
        self.is_cut = True
        for opened in list(self.open_sockets):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False

    def lead_to(self, target: Address) -> None:
        """Hang up on everybody, and lead everybody who calls from here on somewhere else: a fail-over."""
        self.cut()
        self.target = target
        self.mend()

    def loses_reply_to(self, command: bytes) -> bool:
        """Tell whether the reply to a command is to be lost, and use the order up."""
        for part in self.lose_replies_to:
            if part in command:
                self.lose_replies_to.remove(part)
                return True
        return False

    def refusals_of(self, commands: bytes) -> bytes | None:
        """Return an error for each of some whole commands, or None when they may pass."""
        if self.refuse_with is None:
            return None
        number = len(_COMMAND_HEADER.findall(commands))
        self.num_refused += number
        return number * (self.refuse_with + b"\r\n")


@contextmanager
def proxying(target: Address, address: Path | tuple[str, int]) -> Iterator[Proxy]:
    """Serve a proxy before `target`: at the unix socket `address`, or at a host and port, 0 for any that is free."""
    own: Address = str(address) if isinstance(address, Path) else address
    server_type = _UnixServer if isinstance(own, str) else _TcpServer
    handler = type("Handler", (_Handler,), {"proxy": (proxy := Proxy(own, target))})
    with server_type(own, handler) as server:  # type: ignore[arg-type]  # each takes its own kind of address
        proxy.address = server.server_address  # type: ignore[assignment]  # with the port that it got
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.cut()
            server.shutdown()
            thread.join()


def lose_reply_to(proxy: Proxy, connection: redis.Redis, script_name: str) -> None:
    """Lose the reply to the next call of one of the queue's scripts; the server knows the script, so it is run."""
    digest: Any = connection.script_load(load_script(script_name))
    proxy.lose_replies_to.append(digest if isinstance(digest, bytes) else digest.encode())


class _Handler(socketserver.BaseRequestHandler):
    proxy: Proxy
    is_losing = False

    def handle(self) -> None:
        proxy = self.proxy
        if proxy.is_cut:
            proxy.num_hung_up += 1
            return
        family = socket.AF_UNIX if isinstance(proxy.target, str) else socket.AF_INET
        with socket.socket(family) as server, suppress(OSError):
            server.connect(proxy.target)
            proxy.open_sockets |= {self.request, server}
            if not proxy.is_cut:  # it may have been, just now, without these two
                replies = threading.Thread(target=self._pass_replies, args=(server,), daemon=True)
                replies.start()
                self._pass_commands(server)
                replies.join()
        proxy.open_sockets -= {self.request, server}

    def _pass_commands(self, server: socket.socket) -> None:
        was_refused = False
        try:
            while command := self.request.recv(1 << 20):
                if (refusals := self.proxy.refusals_of(command)) is not None:
                    self.request.sendall(refusals)
                    was_refused = True
                    continue
                if was_refused:
                    break  # the last that was refused may have been half a command, and this the other half
                if self.proxy.loses_reply_to(command):
                    self.is_losing = True
                server.sendall(command)
        except OSError:
            pass  # one of the two hung up
        finally:
            # Closing is not enough: while another thread waits for replies, the server would see no end.
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)

    def _pass_replies(self, server: socket.socket) -> None:
        with suppress(OSError):
            while reply := server.recv(1 << 20):
                if self.is_losing:
                    break
                self.request.sendall(reply)
            self.request.shutdown(socket.SHUT_RDWR)


class _UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class _TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
