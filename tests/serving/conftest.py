"""A service in a thread of the test, on a real queue, with a worker whose model is scripted."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from openai import OpenAI

from tests.worker.conftest import connection, sqlite_file, sqlite_store
from tests.worker.fakes import WAIT_SECONDS
from worker.queue.embedded import embedded_url
from worker.serving.service import RunningService, serve
from worker.settings_model import Settings

__all__ = ["connection", "sqlite_file", "sqlite_store"]


@dataclass
class Served:
    """A running service."""

    service: RunningService
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    clients: list[OpenAI] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.service.port}"

    def client(self, key: str = "none", **options: Any) -> OpenAI:
        """Return the official client, which repeats nothing unless told to; it is closed with the service."""
        options = {"max_retries": 0, "timeout": 30.0, **options}
        self.clients.append(OpenAI(base_url=f"{self.url}/v1", api_key=key, **options))
        return self.clients[-1]

    def stop(self) -> None:
        """Tell it to stop."""
        self.loop.call_soon_threadsafe(self.service.stop)

    def wait(self) -> None:
        """Wait for its end."""
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive(), "the service does not end"


Serve = Callable[..., AbstractContextManager[Served]]


@pytest.fixture
def serving(connection: redis.Redis, embedded_data_dir: Path, sqlite_file: Path, tmp_path: Path) -> Serve:
    """Run a service until the block ends; keyword arguments are settings."""

    @contextmanager
    def start(**given: Any) -> Iterator[Served]:
        settings = Settings(
            **{
                "redis_url": embedded_url(embedded_data_dir),
                "database_url": f"sqlite:///{sqlite_file}",
                "data_dir": tmp_path / "data",
                "serve_address": "0",
                "serve_worker_wait_seconds": 0.0,
                "drain_seconds": 0.0,
                **given,
            }
        )
        listening = threading.Event()
        started: list[Served] = []
        errors: list[BaseException] = []

        def on_listening(service: RunningService) -> None:
            started.append(Served(service, asyncio.get_running_loop(), threading.current_thread()))
            listening.set()

        def run() -> None:
            try:
                asyncio.run(serve(settings, on_listening))
            except BaseException as error:
                errors.append(error)
                listening.set()

        thread = threading.Thread(target=run, name="service")
        thread.start()
        assert listening.wait(WAIT_SECONDS)
        if errors:
            raise errors[0]
        try:
            yield started[0]
        finally:
            for client in started[0].clients:
                client.close()
            if thread.is_alive():
                started[0].stop()
            thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), "the service does not end"
        assert not errors

    return start
