"""Reading request bodies, no more of them than is allowed."""

import json
from typing import Any

from starlette.requests import Request

from worker.jobs import MAX_PAYLOAD_BYTES
from worker.openai_api.errors import RequestRefused, refusal

MAX_JSON_BYTES = 2 * MAX_PAYLOAD_BYTES  # escapes in JSON may double what a job may have


async def read_json(request: Request) -> Any:
    """Return the body's JSON value. Raises RequestRefused for one that is too large or none."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_JSON_BYTES:
            raise too_large(MAX_JSON_BYTES)
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError:
        raise refusal(None, "the body is not UTF-8", "invalid_body") from None
    except (ValueError, RecursionError) as error:
        raise refusal(None, f"the body is not JSON: {error}", "invalid_body") from None


def too_large(limit_bytes: int) -> RequestRefused:
    """Return the exception for a body above a limit."""
    return refusal(None, f"the body is too large; at most {limit_bytes} bytes are taken", "body_too_large", status=413)
