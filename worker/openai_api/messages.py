"""Messages as OpenAI's clients write them, to the messages of a job."""

from collections.abc import Mapping
from typing import Any

from worker.jobs import shorten
from worker.openai_api.errors import UNKNOWN_PARAMETER, UNSUPPORTED_VALUE, refusal

# A developer's message is what newer clients call a system message.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
# What an assistant's message has beside its text when it is sent back as it was received: nothing, or its calls.
EMPTY: tuple[Any, ...] = (None, [], {})
RETURNED_FIELDS = ("refusal", "annotations", "audio", "tool_calls", "function_call")
CALL_FIELDS = ("tool_calls", "tool_call_id")


def job_messages(value: Any) -> list[dict[str, Any]]:
    """Return the messages of a job. Raises RequestRefused naming the first that is none of ours."""
    if not isinstance(value, list) or not value:
        raise refusal("messages", f"must be a list of at least one message, got {shorten(value)}")
    return [_message(f"messages.{place}", message) for place, message in enumerate(value)]


def _message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise refusal(where, f"must be an object with role and content, got {shorten(message)}")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise refusal(
            f"{where}.role", f"{shorten(role)} is not supported; the roles are {', '.join(ROLES)}", UNSUPPORTED_VALUE
        )
    calls: dict[str, Any] = {}
    for name, value in message.items():
        if name in ("role", "content") or (name in RETURNED_FIELDS and value in EMPTY):
            continue
        if name in CALL_FIELDS:
            calls[name] = value
        elif name in RETURNED_FIELDS or name == "name":
            raise refusal(f"{where}.{name}", f"{shorten(value)} is not supported", UNSUPPORTED_VALUE)
        else:
            raise refusal(where, f"unknown field {shorten(name)}; a message has role and content", UNKNOWN_PARAMETER)
    content = message.get("content")
    if content is None and "tool_calls" in calls:
        return {"role": ROLES[role], **calls}
    return {"role": ROLES[role], **calls, "content": _text(f"{where}.content", content)}


def _text(where: str, content: Any) -> str:
    """Return the text of a message's content; several parts are one text, with nothing added between them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise refusal(where, f"must be a text or a list of text parts, got {shorten(content)}")
    return "".join(_part(f"{where}.{place}", part) for place, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else part
        raise refusal(where, f"parts of type {shorten(kind)} are not supported; only text is", UNSUPPORTED_VALUE)
    unknown = part.keys() - {"type", "text"}
    if unknown:
        raise refusal(where, f"unknown field {shorten(min(unknown))}; a part has type and text", UNKNOWN_PARAMETER)
    text = part.get("text")
    if not isinstance(text, str):
        raise refusal(f"{where}.text", f"must be a text, got {shorten(text)}")
    return text
