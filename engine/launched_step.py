"""A step that the model runner has begun: its results, and what the next step needs of them before they are known."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.quarantine import DeviceOutOfMemory
from engine.request import RequestError
from engine.sampler import Choice, choose
from engine.step_plan import Sampled, SchedulerOutput
from kernels.transfers import to_device

CPU_OUT_OF_MEMORY = "DefaultCPUAllocator"  # how torch's message for it begins, in a plain RuntimeError


class LaunchedStep:
    """A step without drafts, whose tokens are on the device when their turn comes there."""

    def __init__(self, plan: SchedulerOutput, logits: Tensor, failed: Mapping[str, RequestError]) -> None:
        """logits: [num_shares, vocab_size], float32, left alone by others until `choose` has changed them. `failed`
        has, by request id, what is known to have failed."""
        self._plan = plan
        self._logits: Tensor | None = logits  # None where tokens are chosen
        self._choice: Choice | None = None
        self._failed = failed
        self._rows = {share.request.request_id: row for row, share in enumerate(plan.scheduled)}

    def choose(self) -> None:
        """Begin to choose tokens, unless that was done. Raises DeviceOutOfMemory."""
        logits, self._logits = self._logits, None
        if logits is not None:
            with noted_out_of_memory(logits.device), torch.inference_mode():  # logits are changed in place
                self._choice = choose(logits, self._plan.requests)

    @property
    def _chosen(self) -> Choice:
        assert self._choice is not None, "a step chooses before anybody asks for its tokens"
        return self._choice

    def results(self) -> Mapping[str, Sampled]:
        """Wait for the step and return what it sampled. Raises DeviceOutOfMemory, and what the device raised."""
        choice = self._chosen
        with noted_out_of_memory(choice.tokens.device):
            chosen = choice.results()
        sampled = [token if isinstance(token, RequestError) else (token,) for token in chosen]
        return {**results_of(self._plan, sampled), **self._failed}

    def fill_pending(self, ahead: SchedulerOutput, token_ids: Tensor) -> None:
        """Put the tokens that this step samples in their places among the packed tokens of the step after it.

        token_ids: [T] or longer, int64, on the device. Nothing waits for them.
        """
        places, rows = [], []
        stop = 0
        for share in ahead.scheduled:
            stop += share.num_scheduled_tokens
            if share.has_pending_token:
                places.append(stop - 1)
                rows.append(self._rows[share.request.request_id])
        if places:
            device = token_ids.device
            tokens = self._chosen.tokens[to_device(rows, torch.int64, device)]
            token_ids.index_copy_(0, to_device(places, torch.int64, device), tokens)


def results_of(plan: SchedulerOutput, sampled: Sequence[Sampled]) -> dict[str, Sampled]:
    """Return, by request id, what counts of each share's row: its tokens where it samples, an error in any case."""
    return {
        share.request.request_id: result
        for share, result in zip(plan.scheduled, sampled, strict=True)
        if share.samples or isinstance(result, RequestError)
    }


@contextmanager
def noted_out_of_memory(device: torch.device) -> Iterator[None]:
    """Raise DeviceOutOfMemory in the place of whatever says so."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        if device.type == "cuda":
            torch.cuda.empty_cache()
        raise DeviceOutOfMemory(str(error)) from error
    except RuntimeError as error:
        if CPU_OUT_OF_MEMORY in str(error):
            raise DeviceOutOfMemory(str(error)) from error
        raise
