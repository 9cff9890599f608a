"""OpenAI's error objects, and what becomes one: a refused request, a job that failed, a service that is away."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from worker.errors import InvalidJob, PagemillError, ServiceUnavailable, TryLater
from worker.jobs import PromptJob

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
MODEL_NOT_FOUND = "model_not_found"
INVALID_VALUE = "invalid_value"
UNSUPPORTED_VALUE = "unsupported_value"
UNKNOWN_PARAMETER = "unknown_parameter"
MISSING_PARAMETER = "missing_required_parameter"
_FIRST_WORD = re.compile(r"\w+", re.ASCII)


class ErrorType(StrEnum):
    """Whose fault an error is."""

    INVALID_REQUEST = "invalid_request_error"
    AUTHENTICATION = "authentication_error"
    RATE_LIMIT = "rate_limit_error"
    SERVER = "server_error"


@dataclass(frozen=True, slots=True)
class ApiError:
    """An error as an HTTP answer tells it. `param` is the request's field at fault."""

    status: int  # HTTP's
    message: str
    type: ErrorType = ErrorType.INVALID_REQUEST
    param: str | None = None
    code: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the answer's body."""
        error = {"message": self.message, "type": self.type.value, "param": self.param, "code": self.code}
        return {"error": error}


class RequestRefused(PagemillError):
    """A request that cannot be served as asked; `error` is what its sender is told."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def refusal(param: str | None, message: str, code: str = INVALID_VALUE, *, status: int = 400) -> RequestRefused:
    """Return the exception for a request whose field `param` is at fault; the message is told with its name."""
    text = message if param is None else f"{param}: {message}"
    return RequestRefused(ApiError(status, text, ErrorType.INVALID_REQUEST, param, code))


def model_refusal(model: str, served: str) -> RequestRefused:
    """Return the exception for a model that nobody here serves; `served` tells what is."""
    return refusal("model", f"{model!r} is not served here; {served}", MODEL_NOT_FOUND, status=404)


# A job's error code -> status, type, parameter and code of OpenAI's. What is not here is the server's fault.
# Of a value that the worker found at fault, the message begins with the field.
JOB_ERRORS: Mapping[str, tuple[int, ErrorType, str | None, str]] = {
    "context_length": (400, ErrorType.INVALID_REQUEST, None, CONTEXT_LENGTH_EXCEEDED),
    "kv_capacity": (400, ErrorType.INVALID_REQUEST, None, CONTEXT_LENGTH_EXCEEDED),
    "model_not_served": (404, ErrorType.INVALID_REQUEST, "model", MODEL_NOT_FOUND),
    "invalid_job": (400, ErrorType.INVALID_REQUEST, None, INVALID_VALUE),
    "invalid_parameter": (400, ErrorType.INVALID_REQUEST, None, INVALID_VALUE),
    "invalid_token": (400, ErrorType.INVALID_REQUEST, None, INVALID_VALUE),
    "empty_prompt": (400, ErrorType.INVALID_REQUEST, None, INVALID_VALUE),
    "grammar_failed": (400, ErrorType.INVALID_REQUEST, None, "grammar_failed"),
    "deadline_exceeded": (504, ErrorType.SERVER, None, "deadline_exceeded"),
}


def error_of_job(code: str | None, message: str | None) -> ApiError:
    """Return the error of a job that failed, by the code and the message that SQL has of it."""
    code = code or "internal_error"
    text = message or "the job failed and no reason was recorded"
    if code not in JOB_ERRORS:
        return ApiError(500, text, ErrorType.SERVER, None, code)
    status, error_type, param, openai_code = JOB_ERRORS[code]
    if openai_code == INVALID_VALUE and (field := _FIRST_WORD.match(text)) and field[0] in PromptJob.model_fields:
        param = field[0]
    return ApiError(status, text, error_type, param, openai_code)


def error_of(error: PagemillError) -> ApiError:
    """Return the error of a request that was refused, or that met a service that is away."""
    if isinstance(error, RequestRefused):
        return error.error
    if isinstance(error, InvalidJob):
        param = None if error.field == "payload" else error.field
        return ApiError(400, str(error), ErrorType.INVALID_REQUEST, param, INVALID_VALUE)
    if isinstance(error, ServiceUnavailable | TryLater):
        return ApiError(503, str(error), ErrorType.SERVER, None, "service_unavailable")
    return ApiError(400, str(error), ErrorType.INVALID_REQUEST)
