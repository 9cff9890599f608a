"""Log-probabilities of outputs, in OpenAI's two forms: that of chats, and the older one of completions."""

from codecs import getincrementaldecoder
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
    """Return the most likely tokens, and the chosen one; None at a prompt's first token, of which there is no
    probability. Of several with one text, parts of characters say, the likeliest is told."""
    if entry["logprob"] is None:
        return None
    top = entry["top_logprobs"]
    is_among_them = any(one["token_id"] == entry["token_id"] for one in top)
    told: dict[str, float] = {}
    for one in top if is_among_them else [*top, entry]:
        told.setdefault(one["token"], one["logprob"])
    return told


def _with_top(entry: Mapping[str, Any]) -> dict[str, Any]:
    return _token(entry) | {"top_logprobs": [_token(one) for one in entry["top_logprobs"]]}


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    data = _bytes(entry)
    return {"token": entry["token"], "logprob": entry["logprob"], "bytes": None if data is None else list(data)}


def _bytes(entry: Mapping[str, Any]) -> bytes | None:
    """Return a token's bytes; None of a part of a character of which they are not known."""
    text: str = entry["token"]
    if "bytes" in entry:
        return bytes(entry["bytes"])
    return None if REPLACEMENT in text else text.encode()


def _offsets(entries: Iterable[Mapping[str, Any]]) -> Iterable[int]:
    """Yield how many characters are whole before each token."""
    offset, characters = 0, getincrementaldecoder("utf-8")("replace")
    for entry in entries:
        yield offset
        data = _bytes(entry)
        offset += len(entry["token"] if data is None else characters.decode(data))
