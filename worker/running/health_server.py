"""The health endpoint: /healthz, /livez and /metrics over HTTP, beside the worker's work and never in its way."""

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from worker.errors import ConfigurationError
from worker.running.health import HealthReport
from worker.settings_types import Address

CONNECTION_SECONDS = 5.0  # a client that sends or reads nothing for so long is dropped
MAX_CONNECTIONS = 16  # at once; others are dropped

logger = logging.getLogger(__name__)

Report = Callable[[], HealthReport]
Expose = Callable[[str | None], tuple[bytes, str]]  # from an Accept header to a text and its content type


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD. Tells nothing of the interpreter or of errors."""

    server: "_Server"
    timeout = CONNECTION_SECONDS
    error_content_type = "text/plain"
    error_message_format = "%(code)d\n"

    def version_string(self) -> str:
        return "pagemill"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/livez":
            self._send_json(HTTPStatus.OK, {"alive": True})
        elif path == "/healthz":
            report = self.server.report()
            self._send_json(HTTPStatus.OK if report.healthy else HTTPStatus.SERVICE_UNAVAILABLE, asdict(report))
        elif path == "/metrics":
            self._send(HTTPStatus.OK, *self.server.expose(self.headers.get("Accept")))
        else:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": "only /healthz, /livez and /metrics are here"})

    def _send_json(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        self._send(status, json.dumps(document).encode() + b"\n", "application/json")

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("health endpoint: " + format, *args)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Address, report: Report, expose: Expose) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.report = report
        self.expose = expose
        self._seats = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((address.host, address.port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._seats.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._seats.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._seats.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.warning("health endpoint: a request failed", exc_info=True)

    def server_bind(self) -> None:
        """Bind, and look up no names: HTTPServer's own may take a resolver's time-out."""
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


@contextmanager
def serving_health(address: Address | None, report: Report, expose: Expose) -> Iterator[int | None]:
    """Answer requests until the block ends; gives the port, None where no address is set.

    Raises ConfigurationError when nobody may listen there.
    """
    if address is None:
        yield None
        return
    try:
        server = _Server(address, report, expose)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(f"health_address: cannot listen on {address}: {reason}") from None
    thread = threading.Thread(target=server.serve_forever, name="pagemill-health", daemon=True)
    thread.start()
    logger.info("health is served on http://%s/healthz", Address(address.host, server.server_port))
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
