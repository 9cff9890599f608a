"""Choosing each request's next token from its logits, on the logits' device."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.request import Request, RequestError


def sample(logits: Tensor, requests: Sequence[Request]) -> list[int | RequestError]:
    """Return the next token of each request, or `numerical_error` for a row whose logits are not finite.

    logits: [num_requests, vocab_size], float32, mutated. Greedy rows take the largest logit. The others draw by inverse
    CDF from one uniform number that depends on the request's seed and position only, so a request's tokens do not
    depend on what else is in the batch, nor on preemptions.
    """
    _forbid_early_stops(logits, requests)
    best, greedy = logits.max(dim=-1)
    finite = torch.isfinite(best).tolist()
    tokens: list[int | RequestError] = list(greedy.tolist())
    rows_by_top_k: defaultdict[int, list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        if request.params.temperature > 0 and finite[index]:
            rows_by_top_k[request.params.top_k].append(index)
    for top_k, drawn in rows_by_top_k.items():
        rows = logits if len(drawn) == len(requests) else logits[drawn]
        for index, token in zip(drawn, _draw(rows, [requests[i] for i in drawn], top_k), strict=True):
            tokens[index] = token
    for index, is_finite in enumerate(finite):
        if not is_finite:
            tokens[index] = RequestError("numerical_error", "the model returned logits that are not finite")
    return tokens


def _forbid_early_stops(logits: Tensor, requests: Sequence[Request]) -> None:
    for row, request in enumerate(requests):
        if request.num_output_tokens < request.params.min_tokens and request.stop_ids:
            logits[row, list(request.stop_ids)] = float("-inf")


def _draw(logits: Tensor, requests: Sequence[Request], top_k: int) -> list[int]:
    """Draw from softmax(logits / temperature), cut by top-k, then top-p of what is left, then min-p.

    All requests have the same top-k: among equal logits, of which a narrow type has many, the order depends on it.
    """
    params = [request.params for request in requests]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device).unsqueeze(1)

    if 0 < top_k < logits.shape[1]:
        kept, token_ids = logits.topk(top_k, dim=-1)
    else:
        kept, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    kept = (kept.double() - kept[:, :1].double()) / column([p.temperature for p in params])
    probabilities = kept.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    cut = (before >= column([p.top_p for p in params])) | (
        probabilities < column([p.min_p for p in params]) * probabilities[:, :1]
    )
    cut[:, 0] = False
    cumulative = probabilities.masked_fill(cut, 0.0).cumsum(dim=-1)
    uniform = column([_uniform(request) for request in requests])
    ranks_drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    # A product rounded up to the total would point past the last token kept.
    last_kept = (~cut).sum(dim=-1, keepdim=True) - 1
    return token_ids.gather(1, torch.minimum(ranks_drawn, last_kept)).squeeze(1).tolist()


def _uniform(request: Request) -> float:
    """Return a number in [0, 1) from Philox, a counter-based generator: key = seed, counter = output position."""
    bits = np.random.Philox(key=request.params.seed, counter=request.num_output_tokens)
    return float(np.random.Generator(bits).random())
