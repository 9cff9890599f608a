"""Choosing each request's next token from its logits, on the logits' device."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from engine.adjusting import adjust, bans_ends
from engine.request import Request, RequestError, RequestState, TokenLogprobs
from kernels import ops
from kernels.draws import Draws
from kernels.transfers import HostCopies, to_device

NOT_FINITE = "the model returned logits that are not finite"


def sample(logits: Tensor, requests: Sequence[Request]) -> list[int | RequestError]:
    """Return the next token of each request, or why it must end; see `choose`."""
    return choose(logits, requests).results()


class Choice:
    """What a step's rows chose, on the logits' device; `results` waits for it."""

    def __init__(
        self,
        requests: Sequence[Request],
        tokens: Tensor,
        finite: Tensor,
        failed: Mapping[int, RequestError],
        logprobs: "_PlainLogprobs",
    ) -> None:
        """tokens: [num_requests], int64. finite: [num_requests], bool. `failed` has errors by row."""
        self.tokens = tokens
        self._requests = requests
        self._failed = failed
        self._logprobs = logprobs
        self._copies = HostCopies(tokens, finite)
        logprobs.fetch(tokens)

    def results(self) -> list[int | RequestError]:
        """Return each request's token, or why it must end. Log-probabilities are noted in those that ask for them."""
        tokens, finite = (copy.tolist() for copy in self._copies.wait())
        results: list[int | RequestError] = []
        for row, (token, is_finite) in enumerate(zip(tokens, finite, strict=True)):
            error = self._failed.get(row) if is_finite else RequestError("numerical_error", NOT_FINITE)
            results.append(token if error is None else error)
        self._logprobs.note(self._requests, results)
        return results


def choose(logits: Tensor, requests: Sequence[Request]) -> Choice:
    """Choose the next token of each request: `numerical_error` for a row whose logits are not finite, or what its
    grammar met.

    logits: [num_requests, vocab_size], float32, mutated. Greedy rows take the largest logit. The others draw by inverse
    CDF from one uniform number that depends on the request's seed and position only, so a request's tokens do not
    depend on what else is in the batch, nor on preemptions. On a GPU, nothing waits for the logits.
    """
    logprobs = _PlainLogprobs(logits, requests)
    # The -inf of a grammar, or of ends that may not come yet, could hide what is not finite.
    confined = [row for row, request in enumerate(requests) if request.grammar is not None or bans_ends(request)]
    plain_best = _rows(logits, confined).amax(dim=-1) if confined else None
    failed = adjust(logits, requests)
    best, tokens = _largest(logits)
    finite = torch.isfinite(best)
    if plain_best is not None:
        places = to_device(confined, torch.int64, logits.device)
        finite[places] = finite[places] & torch.isfinite(plain_best)
    drawn = [index for index, request in enumerate(requests) if request.params.temperature > 0]
    if drawn:
        draw = _draw_by_search if ops.uses_triton(logits.device) else _draw_by_sort
        draw(logits, requests, drawn, tokens, finite)
    return Choice(requests, tokens, finite, failed, logprobs)


def _largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest logit and its first place; NaN counts as the largest."""
    if logits.device.type != "cpu":
        best, places = logits.max(dim=-1)
        return best, places
    places = torch.from_numpy(logits.numpy().argmax(axis=-1))  # several times as fast as torch's
    return logits.gather(1, places.unsqueeze(1)).squeeze(1), places


def _rows(logits: Tensor, rows: list[int]) -> Tensor:
    return logits if len(rows) == len(logits) else logits[to_device(rows, torch.int64, logits.device)]


class _PlainLogprobs:
    """The log-probabilities of rows that ask for them, as the model gave them, before anything a request asks for
    changes its logits."""

    def __init__(self, logits: Tensor, requests: Sequence[Request]) -> None:
        rows_by_num_top: defaultdict[int, list[int]] = defaultdict(list)
        for row, request in enumerate(requests):
            if request.params.logprobs is not None:
                rows_by_num_top[request.params.logprobs].append(row)
        # Which of equal logits are among the likeliest may depend on how many those are to be.
        self._groups = [
            (num_top, rows, _rows(logits, rows).log_softmax(dim=-1)) for num_top, rows in rows_by_num_top.items()
        ]
        self._fetched: list[tuple[list[int], HostCopies]] = []

    def fetch(self, tokens: Tensor) -> None:
        """Have read what they say of the tokens that rows chose, [num_requests], and of the likeliest."""
        for num_top, rows, logprobs in self._groups:
            chosen = tokens[to_device(rows, torch.int64, tokens.device)]
            self._fetched.append((rows, fetch_logprobs(logprobs, chosen, num_top)))
        self._groups.clear()

    def note(self, requests: Sequence[Request], tokens: Sequence[int | RequestError]) -> None:
        """Note in requests what was read, by position: a step that is run again, or a chunk that does not sample,
        writes what the next one overwrites. Whoever has ended since has all."""
        for rows, fetched in self._fetched:
            for row, noted in zip(rows, read_logprobs(fetched), strict=True):
                request = requests[row]
                if request.state is not RequestState.FINISHED and not isinstance(tokens[row], RequestError):
                    request.logprobs[request.num_output_tokens :] = [noted]


def fetch_logprobs(logprobs: Tensor, chosen: Tensor, num_top: int) -> HostCopies:
    """Have read what rows of log-probabilities, [num_rows, vocab_size], say of one token each, [num_rows], int64, and
    of the likeliest."""
    of_chosen = logprobs.gather(1, chosen.unsqueeze(1)).squeeze(1)
    values, token_ids = logprobs.topk(min(num_top, logprobs.shape[1]), dim=-1)
    return HostCopies(of_chosen, token_ids, values)


def read_logprobs(fetched: HostCopies) -> list[TokenLogprobs]:
    """Return what `fetch_logprobs` read, a row each."""
    rows = zip(*(copy.tolist() for copy in fetched.wait()), strict=True)
    return [TokenLogprobs(logprob, tuple(zip(ids, tops, strict=True))) for logprob, ids, tops in rows]


def _draw_by_search(
    logits: Tensor, requests: Sequence[Request], drawn: Sequence[int], tokens: Tensor, finite: Tensor
) -> None:
    """Put the tokens of the drawn rows in their places, in one launch. The rule is `_draw`'s, with the lower id first
    among equal logits, up to the rounding of exponentials."""
    params = [requests[index].params for index in drawn]
    integers = (drawn, [p.top_k for p in params])
    fractions = (
        [p.temperature for p in params],
        [p.top_p for p in params],
        [p.min_p for p in params],
        [_uniform(requests[index]) for index in drawn],
    )
    rows, top_ks = to_device([*chain(*integers)], torch.int64, logits.device).view(len(integers), -1)
    temperatures, top_ps, min_ps, uniforms = to_device([*chain(*fractions)], torch.float64, logits.device).view(
        len(fractions), -1
    )
    logits.masked_fill_(~finite.unsqueeze(1), 0.0)  # a search needs an order; such a row's token is nobody's
    tokens[rows] = ops.draw(logits, Draws(rows, temperatures, top_ks, top_ps, min_ps, uniforms))


def _draw_by_sort(
    logits: Tensor, requests: Sequence[Request], drawn: Sequence[int], tokens: Tensor, finite: Tensor
) -> None:
    """Put the tokens of the drawn rows that are finite in their places."""
    rows_by_top_k: defaultdict[int, list[int]] = defaultdict(list)
    for index in drawn:
        if finite[index]:
            rows_by_top_k[requests[index].params.top_k].append(index)
    for top_k, indices in rows_by_top_k.items():
        rows = logits if len(indices) == len(requests) else logits[indices]
        tokens[indices] = _draw(rows, [requests[index] for index in indices], top_k)


def _draw(logits: Tensor, requests: Sequence[Request], top_k: int) -> Tensor:
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
    return token_ids.gather(1, torch.minimum(ranks_drawn, last_kept)).squeeze(1)


def _uniform(request: Request) -> float:
    """Return a number in [0, 1) from Philox, a counter-based generator: key = seed, counter = output position."""
    bits = np.random.Philox(key=request.params.seed, counter=request.num_expected_output_tokens)
    return float(np.random.Generator(bits).random())
