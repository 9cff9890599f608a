"""Log records as JSON, one object a line: for machines that collect logs."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from worker.log_fields import fields_of


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object in ASCII: no text can break its line. Keys are in docs/logs.md."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **fields_of(record),
            "process": record.process,
            "thread": record.threadName,
        }
        if record.exc_info is not None and record.exc_info[0] is not None:
            kind, error, _ = record.exc_info
            document["error"] = {
                "type": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
                "message": str(error),
                "stack": self.formatException(record.exc_info),
            }
        return _well_formed(json.dumps(document, default=str))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage().rstrip()
    except (TypeError, ValueError):  # a library's mistake; better a clumsy line than none
        return f"{record.msg} {record.args!r}"


def _well_formed(line: str) -> str:
    """Return JSON in which a lone surrogate, which some readers refuse, is U+FFFD."""
    if "\\ud" not in line:
        return line
    text = json.loads(line)
    return json.dumps(_replaced(text))


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return {key: _replaced(item) for key, item in value.items()} if isinstance(value, dict) else value
