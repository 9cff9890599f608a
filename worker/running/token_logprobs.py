"""The log-probabilities of an output, with the tokens' texts: what is stored and what producers get."""

from collections.abc import Sequence
from typing import Any

from engine.detokenizing import REPLACEMENT, Detokenizer
from engine.request import Request, TokenLogprobs


def described(request: Request, detokenize: Detokenizer) -> list[dict[str, Any]] | None:
    """Return an object for each output token: `token_id`, `token` (its text, as it is within a text), `logprob`, and
    `top_logprobs`, the most likely tokens at its place. None where the job did not ask.

    A part of a character shows as U+FFFD, and has `bytes` where they are known. A special token has no text where the
    output's leaves it out; among the most likely it has its name.
    """
    params = request.params
    if params.logprobs is None:
        return None
    output = request.output_token_ids
    begin = 0 if params.goes_on else _num_before_text(output, detokenize)
    return [
        _described(token_id, noted, detokenize, skips=params.skip_special_tokens, goes_on=place >= begin)
        for place, (token_id, noted) in enumerate(zip(output, request.logprobs, strict=True))
    ]


def described_prompt(request: Request, detokenize: Detokenizer) -> list[dict[str, Any]] | None:
    """Return the same of the prompt's tokens, as far as it was computed; the first has nothing before it, and so a
    `logprob` of None and no `top_logprobs`. None where the job did not ask."""
    if request.params.prompt_logprobs is None:
        return None
    prompt = request.token_ids[: len(request.prompt_logprobs) + 1]
    begin = _num_before_text(prompt, detokenize)
    first = {**_entry(prompt[0], None, detokenize, skips=True, goes_on=False), "top_logprobs": []}
    pairs = zip(prompt[1:], request.prompt_logprobs, strict=True)
    return [
        first,
        *(
            _described(token_id, noted, detokenize, skips=True, goes_on=place >= begin)
            for place, (token_id, noted) in enumerate(pairs, start=1)
        ),
    ]


def _num_before_text(token_ids: Sequence[int], detokenize: Detokenizer) -> int:
    """Return how many tokens there are up to the one that a text begins with, special ones left out."""
    return 1 + next((place for place, token_id in enumerate(token_ids) if detokenize.kept([token_id])), len(token_ids))


def _described(
    token_id: int, noted: TokenLogprobs, detokenize: Detokenizer, *, skips: bool, goes_on: bool
) -> dict[str, Any]:
    top = [_entry(*pair, detokenize, skips=False, goes_on=goes_on) for pair in noted.top]
    return {**_entry(token_id, noted.logprob, detokenize, skips=skips, goes_on=goes_on), "top_logprobs": top}


def _entry(
    token_id: int, logprob: float | None, detokenize: Detokenizer, *, skips: bool, goes_on: bool
) -> dict[str, Any]:
    text = detokenize([token_id], skip_special_tokens=skips, goes_on=goes_on)
    entry: dict[str, Any] = {"token_id": token_id, "token": text, "logprob": logprob}
    data = detokenize.part_bytes(token_id) if REPLACEMENT in text else None
    return entry if data is None else {**entry, "bytes": list(data)}
