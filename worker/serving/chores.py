"""What is still done after an answer, and before the service ends."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class Chores:
    """Tasks that nobody waits for until the end. For one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, chore: Coroutine[Any, Any, None]) -> None:
        """Run a chore in the background."""
        task = asyncio.create_task(chore)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    async def finish(self) -> None:
        """Wait for all of them."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("something failed after an answer", exc_info=error)
