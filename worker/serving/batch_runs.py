"""Submitting the files of `/v1/batches` in the background, and making the files of their results.

A batch is in SQL, marked as a service's, until all its jobs are there. A service that ends before that leaves the mark;
the next one goes on. Going on is harmless where another service is still at it, for a line's job is there once.
"""

import asyncio
import logging
from dataclasses import replace
from datetime import datetime, timedelta
from typing import IO

import redis
from sqlalchemy import Engine, select

from worker.batch.exporting import error_lines, output_lines
from worker.batch.lines import RequestRules
from worker.batch.records import ENDED_STATES, BatchFile, BatchStatus
from worker.batch.running import BatchFailed, Plan, check_batch
from worker.batch.store import BatchStore
from worker.batch.submitting import Submitter, rules_of
from worker.errors import PagemillError, ServiceUnavailable, TryLater
from worker.serving.file_store import FileStore
from worker.settings_model import Settings
from worker.sql.api_files import ApiFile
from worker.sql.database import reading
from worker.sql.recording import opened_recorder
from worker.sql.tables import BatchFileRow, utc_now

AT_ONCE = 2  # files that are checked and submitted
RETRY_SECONDS = 5.0  # until a service that is away is tried again
MARK = "serve:"  # how the run key of a service's batch begins
OUTPUT, ERRORS = "-output", "-errors"  # how the ids of a batch's files end
LINES = {OUTPUT: output_lines, ERRORS: error_lines}

logger = logging.getLogger(__name__)


class _Interrupted(Exception):
    """The service ends; the next one goes on."""


class BatchRuns:
    """The batches of one service. For one event loop; what waits for services runs in threads."""

    def __init__(
        self, settings: Settings, engine: Engine, connection: redis.Redis, files: FileStore, closing: asyncio.Event
    ) -> None:
        self.store = BatchStore(engine)
        self._engine = engine
        self._settings = settings
        self._connection = connection
        self._files = files
        self._closing = closing
        self._turns = asyncio.Semaphore(AT_ONCE)

    def create(self, plan: Plan) -> BatchFile:
        """Write a new batch, which `run` then submits."""
        batch = plan.new_batch(None)
        return self.store.create(replace(batch, run_key=f"{MARK}{batch.batch_id}"))

    def unfinished(self) -> list[str]:
        """Return the ids of batches that services have not submitted to the end."""
        statement = select(BatchFileRow.batch_id).where(BatchFileRow.run_key.startswith(MARK, autoescape=True))
        with reading(self._engine) as connection:
            return list(connection.scalars(statement))

    async def run(self, batch_id: str) -> None:
        """Check and submit a batch's file. What comes of it is in SQL."""
        async with self._turns:
            while not self._closing.is_set():
                try:
                    await asyncio.to_thread(self._submit, batch_id)
                except (ServiceUnavailable, TryLater) as error:
                    logger.warning("batch %s is submitted later: %s", batch_id, error)
                    await asyncio.sleep(RETRY_SECONDS)
                except _Interrupted:
                    return
                else:
                    return

    def _submit(self, batch_id: str) -> None:
        status = self.store.status(batch_id)
        if status is None or status.batch.end is not None or status.batch.in_progress_at is not None:
            return
        batch = status.batch
        try:
            with self._files.path(batch.input_name).open("rb") as file:
                self._submit_file(file, batch)
        except FileNotFoundError:
            self.store.fail(batch_id, "its input file is gone")
        except BatchFailed as error:
            logger.info("batch %s failed: %s", batch_id, error)
        except (ServiceUnavailable, TryLater):
            raise
        except PagemillError as error:  # it was cancelled meanwhile
            logger.info("batch %s: %s", batch_id, error)
            self.store.forget_run(batch_id)

    def _submit_file(self, file: IO[bytes], batch: BatchFile) -> None:
        rules = RequestRules(endpoint=batch.endpoint)
        plan = Plan(batch.input_name, None, batch.tenant, batch.queue, rules, None)
        checked = check_batch(self.store, file, batch, plan, lambda _: self._go_on())
        with opened_recorder(self._settings.sql_url()) as recorder:
            ttl = self._settings.result_ttl_seconds
            submitter = Submitter(self._connection, recorder, self.store, self._notice, ttl)
            for _ in submitter.submit(file, batch, rules_of(batch, rules), checked):
                self._go_on()
        self.store.submitted(batch.batch_id)
        self.store.forget_run(batch.batch_id)

    def _notice(self, text: str) -> None:
        logger.warning("%s", text)
        self._go_on()

    def _go_on(self) -> None:
        if self._closing.is_set():
            raise _Interrupted

    def result_file(self, tenant: str, file_id: str) -> ApiFile | None:
        """Return the file of a tenant's results, made anew where it is older than these; None for no such file."""
        ending = next((ending for ending in LINES if file_id.endswith(ending)), None)
        if ending is None:
            return None
        batch_id = f"batch_{file_id.removeprefix('file-').removesuffix(ending)}"
        status = self.store.status(batch_id)
        if status is None or status.batch.tenant != tenant or file_id not in result_file_ids(status):
            return None
        known, ended_at = self._files.files.find(tenant, file_id), ended_at_of(status.batch)
        is_new = known is not None and ended_at is not None and known.created_at >= ended_at
        if is_new and self._files.path(file_id).exists():
            return known
        now = utc_now()
        expires_at = now + timedelta(days=self._settings.serve_file_days)  # made anew when asked for later
        file = ApiFile(file_id, tenant, f"{batch_id}{ending}.jsonl", "batch_output", 0, now, expires_at)
        lines = LINES[ending](self.store, status.batch)
        return self._files.write(file, lambda target: target.writelines(lines))


def result_file_ids(status: BatchStatus) -> tuple[str | None, str | None]:
    """Return the ids of the files of a batch's output and errors; None for one that has no lines, or not yet."""
    batch, counts = status.batch, status.counts
    if batch.state not in ENDED_STATES or batch.failed_at is not None:
        return None, None
    stem = f"file-{batch.batch_id.removeprefix('batch_')}"
    return (stem + OUTPUT if counts.completed else None, stem + ERRORS if counts.failed else None)


def ended_at_of(batch: BatchFile) -> datetime | None:
    """Return when a batch ended, UTC; None where it has not."""
    return batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
