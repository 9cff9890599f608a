"""An output that may call tools, streamed: text as it comes, but for what may be a call; the calls at its end."""

from collections.abc import Mapping, Sequence
from typing import Any

from worker.tool_calls import LLAMA_MARK, OPENING, TOOL_CALLS_REASON, calling_fields

BARE_CALL = "{"  # how an output begins that may be nothing but a call


class ToolStream:
    """Splits one output. What it lets go of, put together, is the content of the whole answer."""

    def __init__(self) -> None:
        self._text = ""
        self._num_sent = 0

    def take(self, text: str) -> str:
        """Return what of the output so far is sure to be content, and was not returned before."""
        self._text += text
        begun = self._text.lstrip()
        if not begun or begun.startswith((BARE_CALL, LLAMA_MARK)) or LLAMA_MARK.startswith(begun):
            return ""
        head, mark, _ = self._text.partition(OPENING)
        if not mark:
            head = self._text[: len(self._text) - _num_begun(self._text, OPENING)]
        return self._send(head.rstrip())  # white space before a call is not part of the content

    def rest(self, finish_reason: str, job_id: str, index: int) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """Return the content that is left of the job's output of that index, all of which was taken, and its calls."""
        fields = calling_fields(self._text, job_id, index) if finish_reason == TOOL_CALLS_REASON else {}
        calls: Sequence[Mapping[str, Any]] = fields.get("tool_calls", ())
        return self._send((fields["content"] if calls else self._text) or ""), calls

    def _send(self, content: str) -> str:
        fresh = content[self._num_sent :]
        self._num_sent += len(fresh)
        return fresh


def _num_begun(text: str, marker: str) -> int:
    """Return how many characters at a text's end may be the beginning of the marker."""
    lengths = range(min(len(marker) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)
