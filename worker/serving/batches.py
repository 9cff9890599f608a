"""`/v1/batches`: files of requests, run in the background; the same batches as those of `pagemill batch`."""

import asyncio
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from worker.batch.changes import cancel
from worker.batch.lines import RequestRules
from worker.batch.records import BatchFile, BatchState, BatchStatus
from worker.batch.running import Plan
from worker.batch.store import BatchStore
from worker.jobs import MAX_METADATA_ENTRIES, shorten
from worker.openai_api.errors import MISSING_PARAMETER, UNKNOWN_PARAMETER, RequestRefused, refusal
from worker.openai_api.requests import parse_endpoint
from worker.serving.batch_runs import result_file_ids
from worker.serving.bodies import read_json
from worker.serving.files import page_document, page_limit
from worker.serving.services import Services

FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata")
MAX_LABEL_CHARACTERS = 512
LONGEST_WINDOW = timedelta(days=30)
DEFAULT_LIMIT = 20
MAX_LIMIT = 100
FAULTS_SHOWN = 100

_WINDOW = re.compile(r"(?P<number>\d{1,6})(?P<unit>[mhd])", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
# The times that OpenAI's object has under their own names.
_TIMES = (
    *("in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at"),
    *("cancelling_at", "cancelled_at"),
)


async def create_batch(request: Request) -> JSONResponse:
    """Take a file that was sent as a batch; it is checked and submitted in the background."""
    services: Services = request.app.state.services
    tenant = request.state.tenant
    plan = _plan(services, tenant, await read_json(request))
    if await asyncio.to_thread(services.files.files.find, tenant, plan.input_name) is None:
        raise refusal("input_file_id", f"there is no file {shorten(plan.input_name)}", "file_not_found")
    batch = await asyncio.to_thread(services.batches.create, plan)
    services.chores.start(services.batches.run(batch.batch_id))
    return JSONResponse(await asyncio.to_thread(_current_document, services.batches.store, batch.batch_id))


async def list_batches(request: Request) -> JSONResponse:
    """Answer with the tenant's batches, the latest first."""
    services: Services = request.app.state.services
    limit = page_limit(request, DEFAULT_LIMIT, MAX_LIMIT)
    after = request.query_params.get("after")
    store = services.batches.store
    found = await asyncio.to_thread(store.latest, limit + 1, tenant=request.state.tenant, after=after)
    return JSONResponse(page_document([_document(status, None) for status in found], limit))


async def show_batch(request: Request) -> JSONResponse:
    """Answer with how far a batch is."""
    services: Services = request.app.state.services
    batch_id = await _known_id(request)
    return JSONResponse(await asyncio.to_thread(_current_document, services.batches.store, batch_id))


async def cancel_batch(request: Request) -> JSONResponse:
    """Cancel what has not ended of a batch."""
    services: Services = request.app.state.services
    batch_id = await _known_id(request)
    status = await asyncio.to_thread(cancel, services.batches.store, services.connection, batch_id)
    return JSONResponse(_document(status, None))


async def _known_id(request: Request) -> str:
    """Return the id in the path. Raises RequestRefused where the tenant has no batch of this id."""
    services: Services = request.app.state.services
    batch_id: str = request.path_params["batch_id"]
    status = await asyncio.to_thread(services.batches.store.status, batch_id)
    if status is None or status.batch.tenant != request.state.tenant:
        raise refusal("batch_id", f"there is no batch {shorten(batch_id)}", "batch_not_found", status=404)
    return batch_id


def _plan(services: Services, tenant: str, body: Any) -> Plan:
    """Return what is to become of a file. Raises RequestRefused naming the first field at fault."""
    if not isinstance(body, Mapping):
        raise refusal(None, f"the body must be a JSON object, got {shorten(body)}", "invalid_body")
    given = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in FIELDS:
            raise refusal(None, f"unknown field {shorten(name)}; a batch has {', '.join(FIELDS)}", UNKNOWN_PARAMETER)
    for name in FIELDS[:3]:
        if name not in given:
            raise refusal(name, "is required", MISSING_PARAMETER)
    try:
        endpoint = parse_endpoint(given["endpoint"])
    except RequestRefused as refused:
        raise refusal("endpoint", refused.error.message.removeprefix("url: ")) from None
    if not isinstance(given["input_file_id"], str):
        raise refusal("input_file_id", f"must be a text, got {shorten(given['input_file_id'])}")
    return Plan(
        input_name=given["input_file_id"],
        output_name=None,
        tenant=tenant,
        queue=services.settings.serve_queue,
        rules=RequestRules(endpoint=endpoint),
        window=_window(given["completion_window"]),
        labels=_labels(given.get("metadata", {})),
    )


def _window(value: Any) -> timedelta:
    match = _WINDOW.fullmatch(value) if isinstance(value, str) else None
    window = timedelta() if match is None else timedelta(**{_UNITS[match["unit"]]: int(match["number"])})
    if not timedelta() < window <= LONGEST_WINDOW:
        raise refusal("completion_window", f"must be like 24h, 90m or 7d, at most 30d, got {shorten(value)}")
    return window


def _labels(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping) or len(value) > MAX_METADATA_ENTRIES:
        raise refusal("metadata", f"must be an object of at most {MAX_METADATA_ENTRIES} texts, got {shorten(value)}")
    for text in (*value.keys(), *value.values()):
        if not isinstance(text, str) or len(text) > MAX_LABEL_CHARACTERS or "\x00" in text:
            raise refusal("metadata", f"has texts of at most {MAX_LABEL_CHARACTERS} characters, got {shorten(text)}")
    return tuple(value.items())


def _current_document(store: BatchStore, batch_id: str) -> dict[str, Any]:
    status = store.status(batch_id)
    assert status is not None, "batches are not deleted"
    has_failed = status.batch.state is BatchState.FAILED
    return _document(status, _errors(store, status.batch) if has_failed else None)


def _errors(store: BatchStore, batch: BatchFile) -> dict[str, Any]:
    faults: list[dict[str, Any]] = [
        {"code": fault.code, "line": fault.line, "message": fault.message, "param": fault.param}
        for fault in islice(store.all_faults(batch.batch_id), FAULTS_SHOWN)
    ]
    reason = {"code": "invalid_file", "line": None, "message": batch.failure, "param": None}
    return {"object": "list", "data": faults or [reason]}


def _document(status: BatchStatus, errors: dict[str, Any] | None) -> dict[str, Any]:
    """Return OpenAI's object for a batch."""
    batch, counts = status.batch, status.counts
    output_file_id, error_file_id = result_file_ids(status)
    return {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": "" if batch.endpoint is None else batch.endpoint.value,
        "errors": errors,
        # One of `pagemill batch` was made of a file that has no id, and a path is nothing for others to see.
        "input_file_id": batch.input_name if batch.input_name.startswith("file-") else "",
        "completion_window": _written_window(batch.window_seconds),
        "status": batch.state.value,
        "output_file_id": output_file_id,
        "error_file_id": error_file_id,
        "created_at": _seconds(batch.created_at),
        **{name: _seconds(getattr(batch, name)) for name in _TIMES},
        "request_counts": {"total": counts.total or 0, "completed": counts.completed, "failed": counts.failed},
        "metadata": dict(batch.labels) or None,
    }


def _written_window(seconds: int | None) -> str:
    if seconds is None:
        return "none"
    return f"{seconds // 3600}h" if seconds % 3600 == 0 else f"{seconds // 60}m"


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
