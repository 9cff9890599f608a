"""A server in front of the queue that goes away, or loses replies, when told to."""

import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_COMMAND_HEADER = re.compile(rb"\*\d+\r\n\$\d+\r\n")


@dataclass
class Proxy:
    """What the proxy is told, and what it has done."""

    url: str
    is_cut: bool = False  # no connection goes through
    refuse_with: bytes | None = None  # the error that every command gets instead of its answer
    num_refused: int = 0
    lose_replies_to: list[bytes] = field(default_factory=list)  # each entry loses the reply to one command with it
    open_sockets: set[socket.socket] = field(default_factory=set)

    def cut(self) -> None:
        """Hang up on everybody, and on everybody who calls from here on."""
        self.is_cut = True
        for opened in list(self.open_sockets):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False

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
def proxying(target: str, path: Path) -> Iterator[Proxy]:
    """Serve a proxy at `path` before the unix socket `target`."""
    proxy = Proxy(f"unix://{path}")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if proxy.is_cut:
                return
            with socket.socket(socket.AF_UNIX) as server, suppress(OSError):
                server.connect(target)
                proxy.open_sockets |= {self.request, server}
                replies = threading.Thread(target=self.pass_replies, args=(server,), daemon=True)
                replies.start()
                while command := self.request.recv(1 << 20):
                    if (refusals := proxy.refusals_of(command)) is not None:
                        self.request.sendall(refusals)
                        continue
                    if proxy.loses_reply_to(command):
                        self.is_losing = True
                    server.sendall(command)
                server.shutdown(socket.SHUT_RDWR)
                replies.join()
            proxy.open_sockets -= {self.request, server}

        is_losing = False

        def pass_replies(self, server: socket.socket) -> None:
            with suppress(OSError):
                while reply := server.recv(1 << 20):
                    if self.is_losing:
                        break
                    self.request.sendall(reply)
                self.request.shutdown(socket.SHUT_RDWR)

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield proxy
        proxy.cut()
        server.shutdown()
        thread.join()
