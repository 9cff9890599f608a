"""The log-probabilities of an output, with the tokens' texts: what is stored and what producers get."""

from typing import Any

from engine.request import Request
from engine.stopping import Detokenize


def described(request: Request, detokenize: Detokenize) -> list[dict[str, Any]] | None:
    """Return an object for each output token: `token_id`, `token` (its text alone; a part of a character shows as
    U+FFFD), `logprob`, and `top_logprobs`, the most likely tokens at its place. None where the job did not ask."""
    if request.params.logprobs is None:
        return None

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token_id": token_id, "token": detokenize([token_id]), "logprob": logprob}

    return [
        entry(token_id, noted.logprob) | {"top_logprobs": [entry(*pair) for pair in noted.top]}
        for token_id, noted in zip(request.output_token_ids, request.logprobs, strict=True)
    ]
