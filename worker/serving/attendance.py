"""Working for a client only while it is there, and while the service goes on."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request

from worker.serving.errors import STOPPING, ClientGone, Turned

T = TypeVar("T")


async def attended(request: Request, closing: asyncio.Event, work: Awaitable[T]) -> T:
    """Return what `work` returns. It is cancelled when the client hangs up (ClientGone), or when the service is about
    to end (Turned). The request's body has been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    ending = asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait({task, gone, ending}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone if gone.done() else Turned(STOPPING)
    finally:
        for one in (task, gone, ending):
            one.cancel()
        await asyncio.gather(task, gone, ending, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
