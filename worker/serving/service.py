"""The running service: listens, answers, and ends in order."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from worker.errors import ConfigurationError
from worker.serving.app import make_app
from worker.serving.services import opened_services
from worker.settings_model import Settings
from worker.settings_types import Address
from worker.sql import schema

CONNECTIONS_PER_REQUEST = 4  # that are open, at most, for each request that may be answered at once
MORE_CONNECTIONS = 64
TELLING_SECONDS = 2.0  # to tell running streams of the end, before connections are cut

logger = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Ends with our exit codes: signals are this module's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class RunningService:
    """A service that listens."""

    def __init__(self, server: uvicorn.Server, closing: asyncio.Event, drain_seconds: float, port: int) -> None:
        self.port = port
        self._server = server
        self._closing = closing
        self._drain_seconds = drain_seconds
        self._timers: list[asyncio.TimerHandle] = []

    def stop(self) -> None:
        """Take no new requests, tell those that still run after `drain_seconds` of the end, and then end; asked again,
        at once. On the service's event loop."""
        loop = asyncio.get_running_loop()
        drain_seconds = 0.0 if self._server.should_exit else self._drain_seconds
        if not self._server.should_exit:
            logger.info("the service ends; running requests have %g s to finish", drain_seconds)
        self._server.should_exit = True
        self._timers += [
            loop.call_later(drain_seconds, self._closing.set),
            loop.call_later(drain_seconds + TELLING_SECONDS, self._cut),
        ]

    def forget(self) -> None:
        """Leave nothing to do behind."""
        for timer in self._timers:
            timer.cancel()

    def _cut(self) -> None:
        self._server.force_exit = True


def run_service(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Requests that run then have `drain_seconds`; a second signal ends them at once.

    Raises ConfigurationError where nobody may listen there or the tables are not as they should be, and
    ServiceUnavailable where Redis or SQL cannot be reached at the start.
    """
    schema.check(settings.sql_url())
    asyncio.run(serve(settings, _stop_by_signals))


def _stop_by_signals(service: RunningService) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, service.stop)


async def serve(settings: Settings, on_listening: Callable[[RunningService], None]) -> None:
    """Serve until the service that `on_listening` is given is stopped. Raises as `run_service`."""
    closing = asyncio.Event()
    address = settings.serve_listener()
    with _listening(address) as listener:
        async with opened_services(settings, closing) as services:
            config = uvicorn.Config(
                make_app(services),
                lifespan="off",
                log_config=None,
                access_log=False,
                log_level="error",  # whoever sends what is no HTTP must not fill the log
                server_header=False,
                proxy_headers=False,
                ws="none",
                limit_concurrency=settings.serve_max_requests * CONNECTIONS_PER_REQUEST + MORE_CONNECTIONS,
            )
            server = _Server(config)
            service = RunningService(server, closing, settings.drain_seconds, listener.getsockname()[1])
            keys = "needs an API key" if services.identities.are_required else "needs no API key"
            logger.info("serving http://%s/v1, which %s", Address(address.host, service.port), keys)
            on_listening(service)
            await server.serve(sockets=[listener])
            service.forget()
    logger.info("the service has ended")


@contextmanager
def _listening(address: Address) -> Iterator[socket.socket]:
    """Give a socket that is bound. Raises ConfigurationError where nobody may listen there."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"serve_address: cannot listen on {address}: {error.strerror or error}") from None
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
        except OSError as error:
            raise ConfigurationError(f"serve_address: cannot listen on {address}: {error.strerror or error}") from None
        yield listener
