"""Server-sent events, as OpenAI's clients read them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from worker.serving.chores import Chores

DONE = "data: [DONE]\n\n"
SIGN_OF_LIFE = ": waiting\n\n"  # a comment: clients skip it, proxies keep the connection
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # nobody between is to hold events back


def as_event(document: dict[str, Any]) -> str:
    """Return a document as an event."""
    return f"data: {json.dumps(document, separators=(',', ':'))}\n\n"


class EventStream(StreamingResponse):
    """An answer of events. However it ends, its events are closed, and `on_end` is called."""

    def __init__(
        self, events: AsyncGenerator[str], *, longest_seconds: float, chores: Chores, on_end: Callable[[], None]
    ) -> None:
        """A client that reads too slowly is cut off after `longest_seconds`."""
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._events = events
        self._longest_seconds = longest_seconds
        self._chores = chores
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._longest_seconds):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            return
        finally:
            self._chores.start(self._events.aclose())  # not here: this task may have been cancelled
            self._on_end()
