"""When a request is done: stop tokens, stop strings, length."""

from engine.detokenizing import Detokenizer, OutputText
from engine.request import FinishReason, Request
from engine.stop_strings import StopFinder


def finish_reason(request: Request, max_model_len: int, detokenize: Detokenizer) -> FinishReason | None:
    """Return why the request ends with its newest tokens, or None to go on. Notes where a stop string begins.

    A stop token ends the output but is kept in the token ids. Before `min_tokens` only the length can end it.
    """
    params, num_tokens = request.params, len(request.token_ids)
    num_output_tokens = num_tokens - request.num_prompt_tokens
    stop_at = _stop_position(request, detokenize) if params.stop else None
    if num_output_tokens >= params.min_tokens:
        if request.token_ids[-1] in request.stop_ids:
            return FinishReason.STOP
        if stop_at is not None:
            request.stop_at = stop_at
            return FinishReason.STOP_STRING
    if num_output_tokens >= params.max_tokens or num_tokens >= max_model_len:
        return FinishReason.LENGTH
    return None


def _stop_position(request: Request, detokenize: Detokenizer) -> int | None:
    params = request.params
    if request.stop_finder is None:
        text = OutputText(detokenize, skip_special_tokens=params.skip_special_tokens, goes_on=params.goes_on)
        request.stop_finder = StopFinder(params.stop, text)
    finder = request.stop_finder
    return finder.find(request.token_ids[request.num_prompt_tokens + finder.num_tokens :])
