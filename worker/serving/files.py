"""`/v1/files`: what tenants send to be run in batches, and what comes of that."""

import asyncio
import unicodedata
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from worker.jobs import shorten
from worker.openai_api.errors import MISSING_PARAMETER, UNKNOWN_PARAMETER, RequestRefused, refusal
from worker.serving.bodies import too_large
from worker.serving.services import Services
from worker.sql.api_files import SENT, ApiFile, FileQuotaReached

PURPOSES = (SENT,)  # for which a tenant may send files
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"  # as OpenAI's clients spell them in a form
FIELDS = ("file", "purpose", ANCHOR, SECONDS)
SHORTEST_LIFE_SECONDS, LONGEST_LIFE_SECONDS = 3_600, 2_592_000  # OpenAI's
FORM_BYTES = 65_536  # of an upload beside its file's content
UPLOAD_SECONDS = 600.0
MAX_NAME_CHARACTERS = 255
DEFAULT_LIMIT = 100
MAX_LIMIT = 10_000


async def upload_file(request: Request) -> Response:
    """Take a file."""
    services: Services = request.app.state.services
    limit = services.settings.serve_max_file_bytes
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise refusal(None, "a file is sent as multipart/form-data, with the fields file and purpose", "invalid_body")
    parser = MultiPartParser(request.headers, _limited(request, limit + FORM_BYTES), max_files=1, max_fields=8)
    services.seats.take()
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            form = await parser.parse()
        try:
            file = await _keep(services, request.state.tenant, form)
        finally:
            await form.close()
    except MultiPartException as error:
        raise refusal(None, f"the form cannot be read: {error.message}", "invalid_body") from None
    except TimeoutError:
        raise refusal(None, f"the file has not come within {UPLOAD_SECONDS:g} s", "timeout", status=408) from None
    finally:
        services.seats.leave()
    return JSONResponse(file_document(file))


async def _limited(request: Request, limit_bytes: int) -> AsyncGenerator[bytes]:
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > limit_bytes:
            raise too_large(limit_bytes)
        yield chunk


async def _keep(services: Services, tenant: str, form: FormData) -> ApiFile:
    for name in form:
        if name not in FIELDS:
            raise refusal(None, f"unknown field {shorten(name)}; a file has {', '.join(FIELDS)}", UNKNOWN_PARAMETER)
    file, purpose = form.get("file"), form.get("purpose")
    if not isinstance(file, UploadFile):
        raise refusal("file", "is required", MISSING_PARAMETER)
    if purpose not in PURPOSES:
        raise refusal("purpose", f"{shorten(purpose)} is not supported; only {' or '.join(PURPOSES)} is")
    if not file.size:
        raise refusal("file", "is empty")
    if file.size > services.settings.serve_max_file_bytes:
        raise too_large(services.settings.serve_max_file_bytes)
    lifetime = _lifetime(form, timedelta(days=services.settings.serve_file_days))
    limit = services.settings.serve_tenant_file_bytes
    await file.seek(0)
    try:
        await asyncio.to_thread(services.files.files.check_room, tenant, file.size, limit)
        return await asyncio.to_thread(
            services.files.keep, tenant, _plain_name(file.filename), SENT, file.file, lifetime, limit
        )
    except FileQuotaReached as error:
        text = f"has {file.size} bytes, and {error}; delete files that are not needed"
        raise refusal("file", text, "file_quota_reached", status=413) from None


def _lifetime(form: FormData, default: timedelta) -> timedelta:
    """Return how long a file is kept. Raises RequestRefused naming the field at fault."""
    anchor, seconds = form.get(ANCHOR), form.get(SECONDS)
    if anchor is None and seconds is None:
        return default
    if anchor != "created_at":
        raise refusal(ANCHOR, f"must be created_at, got {shorten(anchor)}")
    is_number = isinstance(seconds, str) and seconds.isascii() and seconds.isdigit() and len(seconds) <= 9
    if not is_number or not SHORTEST_LIFE_SECONDS <= int(str(seconds)) <= LONGEST_LIFE_SECONDS:
        bounds = f"from {SHORTEST_LIFE_SECONDS} to {LONGEST_LIFE_SECONDS}"
        raise refusal(SECONDS, f"must be a whole number {bounds}, got {shorten(seconds)}")
    return timedelta(seconds=int(str(seconds)))


def _plain_name(name: str | None) -> str:
    """Return a sender's name for a file without what is no text; it is only ever shown."""
    kept = "".join(character for character in name or "" if unicodedata.category(character)[0] != "C")
    return kept[-MAX_NAME_CHARACTERS:] or "file"


async def list_files(request: Request) -> JSONResponse:
    """Answer with the tenant's files, the latest first."""
    services: Services = request.app.state.services
    limit = page_limit(request, DEFAULT_LIMIT, MAX_LIMIT)
    query = request.query_params
    files = await asyncio.to_thread(
        services.files.files.latest,
        request.state.tenant,
        limit + 1,
        purpose=query.get("purpose"),
        after=query.get("after"),
    )
    return JSONResponse(page_document([file_document(file) for file in files], limit))


async def show_file(request: Request) -> JSONResponse:
    """Answer with what is known of a file."""
    return JSONResponse(file_document(await _found(request)))


async def download_file(request: Request) -> Response:
    """Answer with a file's content."""
    services: Services = request.app.state.services
    file = await _found(request)
    path = services.files.path(file.id)
    if not path.exists():
        raise _unknown(file.id)
    headers = {"X-Content-Type-Options": "nosniff"}  # no browser is to take it for a page
    return FileResponse(path, media_type="application/octet-stream", filename=f"{file.id}.jsonl", headers=headers)


async def delete_file(request: Request) -> JSONResponse:
    """Delete a file."""
    services: Services = request.app.state.services
    file_id = request.path_params["file_id"]
    if not await asyncio.to_thread(services.files.delete, request.state.tenant, file_id):
        raise _unknown(file_id)
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})


async def _found(request: Request) -> ApiFile:
    services: Services = request.app.state.services
    file_id = request.path_params["file_id"]
    tenant = request.state.tenant
    file = await asyncio.to_thread(services.batches.result_file, tenant, file_id)
    file = file or await asyncio.to_thread(services.files.files.find, tenant, file_id)
    if file is None:
        raise _unknown(file_id)
    return file


def file_document(file: ApiFile) -> dict[str, Any]:
    """Return OpenAI's object for a file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": int(file.created_at.timestamp()),
        "expires_at": None if file.expires_at is None else int(file.expires_at.timestamp()),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def page_limit(request: Request, default: int, most: int) -> int:
    """Return how many objects a page is to have. Raises RequestRefused for a number out of range."""
    text = request.query_params.get("limit", str(default))
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or not 1 <= int(text) <= most:
        raise refusal("limit", f"must be from 1 to {most}, got {shorten(text)}")
    return int(text)


def page_document(objects: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return OpenAI's object for a page of `objects`, of which there may be one more than the page has."""
    page = objects[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, **ends, "has_more": len(objects) > limit}


def _unknown(file_id: str) -> RequestRefused:
    return refusal("file_id", f"there is no file {shorten(file_id)}", "file_not_found", status=404)
