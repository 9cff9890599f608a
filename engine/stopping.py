"""When a request is done: stop tokens, stop strings, length."""

from collections.abc import Callable, Sequence

from engine.request import FinishReason, Request

Detokenize = Callable[[Sequence[int]], str]

MAX_BYTES_PER_CHARACTER = 4  # UTF-8: a byte-level token may be as little as a quarter of a character


def finish_reason(request: Request, max_model_len: int, detokenize: Detokenize) -> FinishReason | None:
    """Return why the request ends with its newest token, or None to go on.

    A stop token ends the output but is kept in the token ids. Before `min_tokens` only the length can end it.
    """
    params = request.params
    if request.num_output_tokens >= params.min_tokens:
        if request.token_ids[-1] in request.stop_ids:
            return FinishReason.STOP
        if params.stop:
            longest = max(len(stop) for stop in params.stop)
            tail = request.token_ids[-(longest * MAX_BYTES_PER_CHARACTER + 1) :]
            output = tail[max(0, len(tail) - request.num_output_tokens) :]
            if stop_position(output, params.stop, detokenize) is not None:
                return FinishReason.STOP_STRING
    if request.num_output_tokens >= params.max_tokens or request.num_tokens >= max_model_len:
        return FinishReason.LENGTH
    return None


def stop_position(token_ids: Sequence[int], stops: Sequence[str], detokenize: Detokenize) -> int | None:
    """Return where in the text of `token_ids` the first stop string completed by the last token begins, or None.

    Strings complete before the last token do not count: they were seen, and passed over, when their token came.
    """
    text = detokenize(token_ids)
    if not any(stop in text for stop in stops):
        return None
    # What the last token leaves as it was: it may complete a character whose first bytes decode to something else.
    old = detokenize(token_ids[:-1])
    num_old = next((i for i, (a, b) in enumerate(zip(old, text, strict=False)) if a != b), len(old))
    starts = (text.find(stop, max(0, num_old - len(stop) + 1)) for stop in stops)
    return min((start for start in starts if start >= 0), default=None)
