"""What a request asks of its logits before a token is chosen: penalties, biases, forbidden stops, a grammar."""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.request import Request, RequestError, RequestState
from kernels.transfers import sent, to_device

NEVER = float("-inf")

logger = logging.getLogger(__name__)


def adjust(logits: Tensor, requests: Sequence[Request]) -> dict[int, RequestError]:
    """Change the rows of requests that ask for it; return, by row, the errors of those whose grammar fails.

    logits: [num_requests, vocab_size], float32, mutated; rows of other requests keep every bit, and so do those of
    requests that have ended since their logits were computed: a grammar may not go on behind its end.
    """
    failed: dict[int, RequestError] = {}
    for row, request in enumerate(requests):
        params = request.params
        if request.state is RequestState.FINISHED:
            continue
        if params.has_penalties:
            _penalize(logits[row], request)
        if params.logit_bias:
            token_ids, biases = zip(*params.logit_bias, strict=True)
            values = to_device(biases, logits.dtype, logits.device)
            logits[row, to_device(token_ids, torch.int64, logits.device)] += values
        if bans_ends(request):
            logits[row].index_fill_(0, to_device(list(request.stop_ids), torch.int64, logits.device), NEVER)
        if request.grammar is not None:
            try:
                _confine(logits[row], request.grammar.allowed(request.output_token_ids))
            except RequestError as error:
                failed[row] = error
            except Exception:  # a fault of the grammar's library ends its own request
                logger.exception("the grammar of request %s failed", request.request_id)
                failed[row] = RequestError("grammar_failed", "the grammar could not be followed")
    return failed


def bans_ends(request: Request) -> bool:
    """Whether the next token may not be one that ends the output."""
    return request.num_expected_output_tokens < request.params.min_tokens and bool(request.stop_ids)


def _confine(row: Tensor, allowed: NDArray[np.bool_]) -> None:
    row[len(allowed) :] = NEVER
    row[: len(allowed)].masked_fill_(sent(torch.from_numpy(~allowed[: len(row)]), row.device), NEVER)


def _penalize(row: Tensor, request: Request) -> None:
    """Make tokens that were there before less likely (or more, with negative penalties).

    `repetition_penalty` divides positive logits and multiplies negative ones, of every known token (Keskar et al.,
    CTRL, 2019); `frequency_penalty` is taken off for each time that a token is in the output, `presence_penalty` once.
    """
    params = request.params
    counts = _tally(request)
    if not counts:
        return
    token_ids = to_device(list(counts), torch.int64, row.device)
    times = to_device(list(counts.values()), row.dtype, row.device)
    values = row[token_ids]
    if params.repetition_penalty != 1.0:
        values = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    row[token_ids] = values - params.frequency_penalty * times - params.presence_penalty * (times > 0)


def _tally(request: Request) -> dict[int, int]:
    """Return how often each known token is in the output, brought up to date with the newest."""
    tally = request.output_counts
    if request.num_tallied == 0 and request.params.repetition_penalty != 1.0:
        tally.update(dict.fromkeys(request.token_ids[: request.num_prompt_tokens], 0))
    start = max(request.num_tallied, request.num_prompt_tokens)
    for token in request.token_ids[start:]:
        tally[token] = tally.get(token, 0) + 1
    request.num_tallied = request.num_tokens
    return tally
