"""The lines of a batch's output and of its errors, as OpenAI writes them."""

import json
from collections.abc import Mapping
from typing import Any

from worker.batch.records import LineFault, job_id_of
from worker.batch.results import EndedJob
from worker.openai_api.errors import MODEL_NOT_FOUND, ApiError, error_of_job
from worker.openai_api.fields import Endpoint
from worker.openai_api.responses import Choice, ResponseHead, Usage, completion, echoed_logprobs
from worker.records import JobState
from worker.sql.unfinished import DEADLINE_EXCEEDED
from worker.tool_calls import TOOL_CALLS_REASON, calling_fields

REQUEST_ID = "batch_req_"
UNKNOWN_MODEL = "unknown"  # of a worker whose row is gone


def request_id_of(job_id: str) -> str:
    """Return the id of a line in a batch's output or errors."""
    return REQUEST_ID + job_id.removeprefix("batch_")


def result_line(endpoint: Endpoint, job: EndedJob) -> bytes:
    """Return the line of a job that has ended; one that is done belongs to the output, any other to the errors."""
    if job.state is JobState.DONE:
        return _line(job.job_id, job.custom_id, _response(job.job_id, 200, _completion(endpoint, job)))
    if job.state is JobState.CANCELLED:
        error = {"code": "batch_cancelled", "message": "the request was cancelled before it was done"}
        return _line(job.job_id, job.custom_id, None, error)
    if job.error_code == DEADLINE_EXCEEDED:
        return _line(job.job_id, job.custom_id, None, {"code": "batch_expired", "message": job.error_message})
    failure = error_of_job(job.error_code, job.error_message)
    return _line(job.job_id, job.custom_id, _response(job.job_id, failure.status, failure.body()))


def fault_line(batch_id: str, fault: LineFault) -> bytes:
    """Return the line of a request that was never run; it tells which line of the input is at fault."""
    job_id = job_id_of(batch_id, fault.line)
    status = 404 if fault.code == MODEL_NOT_FOUND else 400
    body = ApiError(status, fault.message, param=fault.param, code=fault.code).body()
    body["error"]["line"] = fault.line
    return _line(job_id, fault.custom_id, _response(job_id, status, body))


def _completion(endpoint: Endpoint, job: EndedJob) -> Mapping[str, Any]:
    assert job.text is not None, "a job that is done has its output"
    head = ResponseHead(endpoint, job.job_id, job.ended_at, job.model or UNKNOWN_MODEL)
    usage = Usage(job.prompt_tokens or 0, job.completion_tokens or 0, job.cached_tokens)
    payload = json.loads(job.payload)
    echo, before = ("", None)
    if payload.get("echo"):
        echo, before = payload["prompt"], job.prompt_logprobs
    tells_ids = payload.get("return_token_ids", False)
    outputs = [(job.text, job.finish_reason, job.logprobs, job.token_ids)]
    outputs += [(choice.text, choice.finish_reason, choice.logprobs, [*choice.token_ids]) for choice in job.choices]
    choices = []
    for index, (text, reason, logprobs, token_ids) in enumerate(outputs):
        calling = calling_fields(text, job.job_id, index) if reason == TOOL_CALLS_REASON else {}
        content = (calling["content"] or "") if calling else echo + text
        all_logprobs = echoed_logprobs(before, logprobs)
        calls = calling.get("tool_calls", ())
        choices.append(Choice(content, reason or "stop", all_logprobs, calls, token_ids if tells_ids else None))
    return completion(head, choices, usage, job.prompt_logprobs, job.prompt_token_ids)


def _response(job_id: str, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": job_id, "body": body}


def _line(
    job_id: str, custom_id: str | None, response: Mapping[str, Any] | None, error: Mapping[str, Any] | None = None
) -> bytes:
    line = {"id": request_id_of(job_id), "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(line).encode() + b"\n"
