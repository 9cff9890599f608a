"""Errors as answers: OpenAI's error objects, which say nothing of what is inside."""

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from worker.errors import PagemillError, ServiceUnavailable, TryLater
from worker.openai_api.errors import ApiError, ErrorType, RequestRefused, error_of, error_of_job
from worker.queue.ends import JobEnd
from worker.records import JobState

AWAY = ApiError(503, "the service cannot take this now; try again in a moment", ErrorType.SERVER, None, "unavailable")
BROKEN = ApiError(500, "the service met an error of its own; its log has the details", ErrorType.SERVER)
CANCELLED = ApiError(409, "the job was cancelled", ErrorType.INVALID_REQUEST, None, "cancelled")
STOPPING = ApiError(503, "the service is being stopped; try again in a moment", ErrorType.SERVER, None, "stopping")
RETRY_SECONDS = 5  # what a client is told to wait where nothing says better
SERVER_FAULT = 500

logger = logging.getLogger(__name__)


class Turned(RequestRefused):
    """A request that is turned away for now: it may come again after some seconds."""

    def __init__(self, error: ApiError, retry_after_seconds: int = RETRY_SECONDS) -> None:
        super().__init__(error)
        self.retry_after_seconds = retry_after_seconds


class ClientGone(Exception):
    """Whoever asked has hung up."""


def too_many(message: str, code: str, retry_after_seconds: int = RETRY_SECONDS) -> Turned:
    """Return the exception for a limit that is reached for now."""
    return Turned(ApiError(429, message, ErrorType.RATE_LIMIT, None, code), retry_after_seconds)


def error_of_end(end: JobEnd) -> ApiError:
    """Return the error of a job that is not done. Only what the request itself brought about is told in full."""
    if end.state is JobState.CANCELLED:
        return CANCELLED
    code, separator, text = (end.error or "").partition(": ")
    error = error_of_job(code if separator else None, text if separator else end.error)
    if error.status != SERVER_FAULT:
        return error
    logger.error("job %s failed: %s", end.job_id, end.error)
    return ApiError(SERVER_FAULT, "the job failed for a reason inside the service", ErrorType.SERVER, None, error.code)


def as_response(error: ApiError, retry_after_seconds: int | None = None) -> JSONResponse:
    """Return the answer."""
    headers = {} if retry_after_seconds is None else {"Retry-After": str(retry_after_seconds)}
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


async def on_pagemill_error(request: Request, error: Exception) -> JSONResponse:
    """Answer a request that was refused, turned away, or met a service that is away."""
    assert isinstance(error, PagemillError)
    if isinstance(error, ServiceUnavailable | TryLater):
        logger.error("%s %s: %s", request.method, request.url.path, error)
        return as_response(AWAY, RETRY_SECONDS)
    return as_response(error_of(error), error.retry_after_seconds if isinstance(error, Turned) else None)


async def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer a request for what is not here."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path} is not served" if error.status_code in (404, 405) else error.detail
    return as_response(ApiError(error.status_code, message, ErrorType.INVALID_REQUEST, None, "unknown_url"))


async def on_bug(request: Request, error: Exception) -> JSONResponse:
    """Answer a request that met a fault of ours; the server logs it."""
    return as_response(BROKEN)
