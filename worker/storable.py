"""Text that SQL and Redis can hold: valid Unicode without NUL characters, wherever it stands in a payload."""

import json
from collections.abc import Mapping
from typing import Any

ESCAPED_NUL = b"\\u0000"  # as json.dumps writes it; and a backslash's escape may end so


def holds_surrogate(value: object) -> bool:
    """Return whether a JSON value holds half of a character, which UTF-8 cannot express."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return True
    return False


def nul_position(value: object) -> int | None:
    """Return where in a text of a JSON value, or in a name within it, the first NUL character is; None without one."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, str) and "\x00" in part:
            return part.index("\x00")
        if isinstance(part, Mapping):
            left += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            left += part
    return None


def nul_field(payload: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the first field of a payload that holds a NUL character, and where; None without one."""
    places = ((name, nul_position([name, value])) for name, value in payload.items())
    return next(((name, place) for name, place in places if place is not None), None)
