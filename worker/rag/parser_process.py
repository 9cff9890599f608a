"""Parses files that somebody may have made to break whoever reads them, in a process of its own (`worker.confined`)."""

from collections.abc import Mapping
from typing import Any

from worker.errors import ConfigurationError
from worker.rag.reading import Format, UnreadableDocument, parse_markup


def answer(wanted: Mapping[str, Any], data: bytes) -> dict[str, str]:
    """Return the title and text of a file, or what is the matter with it."""
    try:
        title, text = parse_markup(data, Format(wanted["form"]), wanted["encoding"])
    except UnreadableDocument as error:
        return {"problem": str(error)}
    except ConfigurationError as error:
        return {"missing": str(error)}
    except RecursionError:
        return {"problem": "is nested too deeply to be read"}
    return {"title": title, "text": text}
