"""The log-probabilities of an output, with the tokens' texts: what is stored and what producers get."""

from typing import Any

from engine.detokenizing import Detokenizer
from engine.request import Request, TokenLogprobs


def described(request: Request, detokenize: Detokenizer) -> list[dict[str, Any]] | None:
    """Return an object for each output token: `token_id`, `token` (its text alone; a part of a character shows as
    U+FFFD), `logprob`, and `top_logprobs`, the most likely tokens at its place. None where the job did not ask."""
    if request.params.logprobs is None:
        return None
    pairs = zip(request.output_token_ids, request.logprobs, strict=True)
    return [_described(token_id, noted, detokenize) for token_id, noted in pairs]


def described_prompt(request: Request, detokenize: Detokenizer) -> list[dict[str, Any]] | None:
    """Return the same of the prompt's tokens, as far as it was computed; the first has nothing before it, and so a
    `logprob` of None and no `top_logprobs`. None where the job did not ask."""
    if request.params.prompt_logprobs is None:
        return None
    first, *rest = request.token_ids[: len(request.prompt_logprobs) + 1]
    pairs = zip(rest, request.prompt_logprobs, strict=True)
    begin = {**_entry(first, None, detokenize), "top_logprobs": []}
    return [begin, *(_described(token_id, noted, detokenize) for token_id, noted in pairs)]


def _described(token_id: int, noted: TokenLogprobs, detokenize: Detokenizer) -> dict[str, Any]:
    top = [_entry(*pair, detokenize) for pair in noted.top]
    return {**_entry(token_id, noted.logprob, detokenize), "top_logprobs": top}


def _entry(token_id: int, logprob: float | None, detokenize: Detokenizer) -> dict[str, Any]:
    return {"token_id": token_id, "token": detokenize([token_id]), "logprob": logprob}
