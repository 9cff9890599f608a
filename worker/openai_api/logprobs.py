"""Log-probabilities of outputs, in OpenAI's two forms: that of chats, and the older one of completions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from worker.openai_api.fields import Endpoint

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def logprobs_object(endpoint: Endpoint, entries: Sequence[Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """Return a choice's `logprobs` from a job's, which has an entry for each output token; None where it has none."""
    if entries is None:
        return None
    if endpoint is Endpoint.CHAT:
        return {"content": [_with_top(entry) for entry in entries], "refusal": None}
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [_top(entry) for entry in entries],
        "text_offset": list(_offsets(entries)),
    }


def _top(entry: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the most likely tokens; None at a prompt's first token, of which there is no probability."""
    if entry["logprob"] is None:
        return None
    return {one["token"]: one["logprob"] for one in entry["top_logprobs"]}


def _with_top(entry: Mapping[str, Any]) -> dict[str, Any]:
    return _token(entry) | {"top_logprobs": [_token(one) for one in entry["top_logprobs"]]}


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    text = entry["token"]
    # A token that is a part of a character has no text of its own; what its bytes are is not known here.
    data = None if REPLACEMENT in text else list(text.encode())
    return {"token": text, "logprob": entry["logprob"], "bytes": data}


def _offsets(entries: Iterable[Mapping[str, Any]]) -> Iterable[int]:
    offset = 0
    for entry in entries:
        yield offset
        offset += len(entry["token"])
