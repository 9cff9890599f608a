"""What the endpoints work with: opened at the start of the service, closed at its end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import redis

from worker.async_client import AsyncClient
from worker.cancelling import cancel_jobs
from worker.errors import PagemillError
from worker.queue.connection import connect
from worker.serving.admission import Seats
from worker.serving.batch_runs import BatchRuns
from worker.serving.chores import Chores
from worker.serving.file_store import FileStore
from worker.serving.file_tidying import tidy_files
from worker.serving.fleet import Fleet
from worker.serving.identity import Identities
from worker.settings_model import Settings
from worker.sql.api_files import ApiFiles
from worker.sql.api_keys import ApiKeys
from worker.sql.database import open_database
from worker.sql.store import JobStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """One service's connections, and what it knows. `closing` is set when its end is to be told to running requests."""

    settings: Settings
    client: AsyncClient
    store: JobStore
    connection: redis.Redis
    identities: Identities
    fleet: Fleet
    closing: asyncio.Event
    chores: Chores
    seats: Seats
    files: FileStore
    batches: BatchRuns

    def cancel_soon(self, job_id: str, after: Awaitable[object] | None = None) -> None:
        """Cancel a job for which nobody waits any more, once `after` is over, however that ends."""
        self.chores.start(self._cancel(job_id, after))

    async def _cancel(self, job_id: str, after: Awaitable[object] | None) -> None:
        if after is not None:
            await asyncio.gather(after, return_exceptions=True)
        try:
            await asyncio.to_thread(lambda: list(cancel_jobs(self.store, self.connection, [job_id])))
        except PagemillError as error:
            logger.warning("job %s, for which nobody waits any more, was not cancelled: %s", job_id, error)


@asynccontextmanager
async def opened_services(settings: Settings, closing: asyncio.Event) -> AsyncIterator[Services]:
    """Open everything. Raises ServiceUnavailable or ConfigurationError as each part does."""
    engine = open_database(settings.sql_url())
    connection = await asyncio.to_thread(connect, settings.queue_url(), settings.data_dir)
    client = AsyncClient(
        settings.queue_url(),
        data_dir=settings.data_dir,
        database_url=settings.sql_url() if settings.record else None,
        queue=settings.serve_queue,
    )
    are_keys_required = settings.serve_keys == "required" or (
        settings.serve_keys == "auto" and not settings.serve_listener().is_loopback
    )
    store, chores = JobStore(engine), Chores()
    files = FileStore(settings.data_dir, ApiFiles(engine))
    batches = BatchRuns(settings, engine, connection, files, closing)
    try:
        async with client:
            for batch_id in await asyncio.to_thread(batches.unfinished):
                chores.start(batches.run(batch_id))
            chores.start(tidy_files(files, closing, settings.tidy_seconds))
            yield Services(
                settings,
                client,
                store,
                connection,
                Identities(ApiKeys(engine), are_required=are_keys_required),
                Fleet(settings, store, connection),
                closing,
                chores,
                Seats(settings.serve_max_requests),
                files,
                batches,
            )
            closing.set()
            await chores.finish()
    finally:
        connection.close()
        engine.dispose()
