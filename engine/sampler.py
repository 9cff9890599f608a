"""Choosing each request's next token from its logits, on the logits' device."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.adjusting import adjust, bans_ends
from engine.request import Request, RequestError, TokenLogprobs
from kernels import ops
from kernels.draws import Draws

NOT_FINITE = "the model returned logits that are not finite"


def sample(logits: Tensor, requests: Sequence[Request]) -> list[int | RequestError]:
    """Return the next token of each request, or why it must end: `numerical_error` for a row whose logits are not
    finite, or what its grammar met.

    logits: [num_requests, vocab_size], float32, mutated. Greedy rows take the largest logit. The others draw by inverse
    CDF from one uniform number that depends on the request's seed and position only, so a request's tokens do not
    depend on what else is in the batch, nor on preemptions. Requests that ask for log-probabilities get them noted.
    """
    plain = _Plain(logits, requests)
    failed = adjust(logits, requests)
    best, greedy = _largest(logits)
    finite = torch.isfinite(best).tolist()
    tokens: list[int | RequestError] = list(greedy.tolist())
    drawn = [index for index, request in enumerate(requests) if request.params.temperature > 0 and finite[index]]
    if drawn:
        draw = _draw_by_search if ops.uses_triton(logits.device) else _draw_by_sort
        for index, token in draw(logits, requests, drawn).items():
            tokens[index] = token
    for index, is_finite in enumerate(finite):
        if not is_finite:
            tokens[index] = RequestError("numerical_error", NOT_FINITE)
    for index, error in (failed | plain.failed).items():
        tokens[index] = error
    plain.note_logprobs(requests, tokens)
    return tokens


def _largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest logit and its first place; NaN counts as the largest."""
    if logits.device.type != "cpu":
        best, places = logits.max(dim=-1)
        return best, places
    places = torch.from_numpy(logits.numpy().argmax(axis=-1))  # several times as fast as torch's
    return logits.gather(1, places.unsqueeze(1)).squeeze(1), places


class _Plain:
    """The logits of some rows as the model gave them, before anything a request asks for changes them."""

    def __init__(self, logits: Tensor, requests: Sequence[Request]) -> None:
        self._rows = [row for row, request in enumerate(requests) if request.params.logprobs is not None]
        self._logprobs = logits[self._rows].log_softmax(dim=-1) if self._rows else None
        # The -inf of a grammar, or of ends that may not come yet, could hide what is not finite.
        confined = [row for row, request in enumerate(requests) if request.grammar is not None or bans_ends(request)]
        bad = [] if not confined else (~torch.isfinite(logits[confined].amax(dim=-1))).nonzero().flatten().tolist()
        self.failed = {confined[index]: RequestError("numerical_error", NOT_FINITE) for index in bad}

    def note_logprobs(self, requests: Sequence[Request], tokens: Sequence[int | RequestError]) -> None:
        """Note the log-probabilities of chosen tokens in their requests, by position: a step that is run again, or a
        chunk that does not sample, writes what the next one overwrites."""
        if self._logprobs is None:
            return
        for logprobs, row in zip(self._logprobs, self._rows, strict=True):
            request, token = requests[row], tokens[row]
            if isinstance(token, RequestError):
                continue
            assert request.params.logprobs is not None, "only rows that ask for it are kept"
            noted = token_logprobs(logprobs.unsqueeze(0), [token], request.params.logprobs)
            request.logprobs[request.num_output_tokens :] = noted


def token_logprobs(logprobs: Tensor, chosen: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Return what rows of log-probabilities, [num_rows, vocab_size], say of one token each and of the likeliest."""
    of_chosen = logprobs.gather(1, torch.tensor(chosen, device=logprobs.device).unsqueeze(1)).squeeze(1).tolist()
    values, token_ids = logprobs.topk(min(num_top, logprobs.shape[1]), dim=-1)
    rows = zip(of_chosen, token_ids.tolist(), values.tolist(), strict=True)
    return [TokenLogprobs(logprob, tuple(zip(ids, tops, strict=True))) for logprob, ids, tops in rows]


def _draw_by_search(logits: Tensor, requests: Sequence[Request], drawn: Sequence[int]) -> dict[int, int]:
    """Return the tokens of the drawn rows, in one launch. The rule is `_draw`'s, with the lower id first among equal
    logits, up to the rounding of exponentials."""
    params = [requests[index].params for index in drawn]
    integers = torch.tensor([drawn, [p.top_k for p in params]], dtype=torch.int64).to(logits.device)
    fractions = torch.tensor(
        [
            [p.temperature for p in params],
            [p.top_p for p in params],
            [p.min_p for p in params],
            [_uniform(requests[index]) for index in drawn],
        ],
        dtype=torch.float64,
    ).to(logits.device)
    rows, top_ks = integers
    temperatures, top_ps, min_ps, uniforms = fractions
    draws = Draws(rows, temperatures, top_ks, top_ps, min_ps, uniforms)
    return dict(zip(drawn, ops.draw(logits, draws).tolist(), strict=True))


def _draw_by_sort(logits: Tensor, requests: Sequence[Request], drawn: Sequence[int]) -> dict[int, int]:
    """Return the tokens of the drawn rows."""
    rows_by_top_k: defaultdict[int, list[int]] = defaultdict(list)
    for index in drawn:
        rows_by_top_k[requests[index].params.top_k].append(index)
    tokens: dict[int, int] = {}
    for top_k, indices in rows_by_top_k.items():
        rows = logits if len(indices) == len(requests) else logits[indices]
        tokens |= zip(indices, _draw(rows, [requests[index] for index in indices], top_k), strict=True)
    return tokens


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
