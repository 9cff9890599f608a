"""Small tensors between host and device, in the order of the device's work but without waiting for it.

On a CPU nothing is copied that need not be. On a GPU both ways go through pinned memory: a copy from or to other memory
would wait for all the work that is queued before it, the step under way with it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(values: Sequence[int] | Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return values as a tensor on the device, [len(values)]."""
    return sent(torch.tensor(values, dtype=dtype), device)


def sent(host: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on the device."""
    return to_send(host, device).to(device, non_blocking=True)


def to_send(host: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host from where copies to the device need not wait."""
    return host.pin_memory() if device.type == "cuda" else host


class HostCopies:
    """Tensors of one device on their way to the host, from where the device's work stands now."""

    def __init__(self, *tensors: Tensor) -> None:
        self._ended: torch.cuda.Event | None = None
        if not any(tensor.is_cuda for tensor in tensors):
            self._copies = tensors
            return
        self._copies = tuple(torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors)
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        self._ended = torch.cuda.Event()
        self._ended.record()

    def wait(self) -> tuple[Tensor, ...]:
        """Return them on the host."""
        if self._ended is not None:
            self._ended.synchronize()
        return self._copies
