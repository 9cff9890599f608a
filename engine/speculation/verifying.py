"""Sampling where tokens were drafted: a draft is accepted as far as it is what the request's own sampling chooses.

The sampler's choice depends on the logits, the tokens before and the position alone, so a request's output is the one
that it has without drafts, greedy or drawn: what speculative sampling (Leviathan et al. 2023) keeps in distribution is
kept token for token.
"""

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

from engine.request import Request, RequestError
from engine.sampler import sample
from engine.step_plan import Sampled, ScheduledRequest


def sample_drafts(logits: Tensor, shares: Sequence[ScheduledRequest]) -> list[Sampled]:
    """Return the next tokens of each share, or why its request must end. It waits for the logits.

    logits: [num_rows, vocab_size], float32, mutated: for each share a row of its newest known token and one of each
    drafted token. Rows are sampled in order and no further than the draft proves right, so that whatever depends on the
    tokens before (penalties, a grammar) only ever sees real ones.
    """
    requests = [share.request for share in shares]
    first_rows = list(accumulate((1 + len(share.draft) for share in shares), initial=0))
    num_known = [request.num_tokens for request in requests]
    tokens: list[tuple[int, ...]] = [() for _ in shares]
    errors: dict[int, RequestError] = {}
    going_on = list(range(len(shares)))
    depth = 0
    try:
        while going_on:
            rows = [first_rows[index] + depth for index in going_on]
            chosen = sample(logits[rows], [requests[index] for index in going_on])
            right = []
            for index, token in zip(going_on, chosen, strict=True):
                if isinstance(token, RequestError):
                    errors[index] = token
                    continue
                tokens[index] += (token,)
                if shares[index].draft[depth : depth + 1] == (token,):
                    requests[index].token_ids.append(token)
                    right.append(index)
            going_on = right
            depth += 1
    finally:
        for request, number in zip(requests, num_known, strict=True):
            _forget_behind(request, number)
    return [errors.get(index, run) for index, run in enumerate(tokens)]


def _forget_behind(request: Request, num_tokens: int) -> None:
    """Take back the tokens that a request was shown: to know them is the scheduler's to decide."""
    if request.num_tokens > num_tokens:
        del request.token_ids[num_tokens:]
        request.output_counts.clear()
        request.num_tallied = 0
