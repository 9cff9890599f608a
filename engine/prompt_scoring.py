"""Log-probabilities of prompts: the logits of prompt rows, for requests that ask, a bounded number at a time.

A step computes logits for each request's last row only. The other rows' are had from the last hidden states that the
step leaves behind, through the model's own head: a model's forward is called with those in the place of its layers, so
that whatever an architecture does to its logits (scales, caps) is done.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.request import Request, RequestError
from engine.sampler import NOT_FINITE, fetch_logprobs, read_logprobs
from engine.step_plan import ScheduledRequest, SchedulerOutput
from kernels.transfers import to_device

ROWS_AT_ONCE = 64  # of logits: with a vocabulary of 150,000 they and their logarithms take 77 MB


NOT_SERVED = RequestError(
    "invalid_parameter", "prompt_logprobs cannot be had of this model: its layers have no head apart"
)


class PromptScorer:
    """Notes the log-probabilities of prompt tokens in their requests."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        base = model.base_model
        self._layers: nn.Module = getattr(base, "decoder", base)  # OPT's head calls the decoder itself

    @contextmanager
    def watching(self, plan: SchedulerOutput) -> Iterator[dict[str, RequestError]]:
        """Around a plan's forward: afterwards what it computed of prompts is noted, where it is asked for, and the
        errors of requests whose rows are not finite are in what this yields, by request id."""
        failed: dict[str, RequestError] = {}
        if not any(_asks(share) for share in plan.scheduled):
            yield failed
            return
        left: list[Any] = []
        hook = self._layers.register_forward_hook(lambda module, args, output: left.append(output))
        try:
            yield failed
        finally:
            hook.remove()
        if not left:
            failed.update((share.request.request_id, NOT_SERVED) for share in plan.scheduled if _asks(share))
            return
        begin = 0
        for share in plan.scheduled:
            if _asks(share):
                hidden = left[0].last_hidden_state[:, begin : begin + num_rows(share)]
                if not self._note_rows(share, left[0], hidden):
                    failed[share.request.request_id] = RequestError("numerical_error", NOT_FINITE)
            begin += share.num_scheduled_tokens

    def _note_rows(self, share: ScheduledRequest, output: Any, hidden: Tensor) -> bool:
        """Note what a share's rows say of the tokens behind them. Returns whether all of it is finite.

        hidden: [1, num_rows, hidden_size].
        """
        request, start = share.request, share.num_computed_tokens
        for first in range(0, hidden.shape[1], ROWS_AT_ONCE):
            logits = self._logits(output, hidden[:, first : first + ROWS_AT_ONCE])
            if not torch.isfinite(logits.amax(dim=-1)).all():
                return False
            _note(request, start + first, logits.log_softmax(dim=-1))
        return True

    def _logits(self, output: Any, hidden: Tensor) -> Tensor:
        """Return the logits that follow hidden states, [num_rows, vocab_size], float32."""
        with _replaced_forward(self._layers, replace(output, last_hidden_state=hidden)):
            logits: Tensor = self._model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=False).logits
        return logits[0].float()


def _asks(share: ScheduledRequest) -> bool:
    return share.request.lacks_prompt_logprobs


def num_rows(share: ScheduledRequest) -> int:
    """Return how many of a share's rows, from its first on, have a prompt token behind them."""
    last = share.request.num_prompt_tokens - 1  # what follows the prompt's last token is output
    stop = share.num_computed_tokens + share.num_scheduled_tokens
    return max(0, min(stop, last) - share.num_computed_tokens)


def _note(request: Request, start: int, logprobs: Tensor) -> None:
    """Note the log-probabilities that rows `start` on give, by position: a step that is run again writes what the one
    before wrote. logprobs: [num_rows, vocab_size]."""
    assert request.params.prompt_logprobs is not None, "only of requests that ask"
    behind = request.token_ids[start + 1 : start + 1 + len(logprobs)]
    chosen = to_device(behind, torch.int64, logprobs.device)
    request.prompt_logprobs[start:] = read_logprobs(fetch_logprobs(logprobs, chosen, request.params.prompt_logprobs))


@contextmanager
def _replaced_forward(module: nn.Module, output: Any) -> Iterator[None]:
    """Let a module return this, whatever it is called with."""
    module.forward = lambda *args, **kwargs: output
    try:
        yield
    finally:
        del module.forward
