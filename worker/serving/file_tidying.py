"""What the service does for its files in between: those that have expired are deleted."""

import asyncio
import logging

from worker.errors import PagemillError
from worker.serving.file_store import FileStore

logger = logging.getLogger(__name__)


async def tidy_files(files: FileStore, closing: asyncio.Event, pause_seconds: float) -> None:
    """Delete files that have expired, now and after each pause, until the service ends."""
    while not closing.is_set():
        try:
            num_deleted = await asyncio.to_thread(files.tidy)
            if num_deleted:
                logger.info("deleted %d files that had expired, or that nobody knew of", num_deleted)
        except (PagemillError, OSError) as error:
            logger.warning("files that have expired are deleted later: %s", error)
        try:
            await asyncio.wait_for(closing.wait(), pause_seconds)
        except TimeoutError:
            continue
