"""A line for each request, when its answer has ended."""

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLIENT_CLOSED = 499  # what is logged for a client that hung up before an answer began, as others do

logger = logging.getLogger(__name__)


class AccessLog:
    """Logs requests: method, path, status, seconds, and what the handlers add to `request.state.log`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, num_bytes = time.monotonic(), CLIENT_CLOSED, 0
        details: dict[str, str] = {}
        scope.setdefault("state", {})["log"] = details

        async def watched_send(message: Message) -> None:
            nonlocal status, num_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
            num_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            path = repr(scope["path"])[1:-1]  # without line breaks and control characters
            told = "".join(f" {name}={value}" for name, value in details.items())
            seconds = time.monotonic() - started
            line = f"{scope['method']} {path} {status} {seconds:.3f} s {num_bytes} bytes{told}"
            logger.info("%s", line, extra=details)
