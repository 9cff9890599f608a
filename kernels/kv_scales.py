"""Caches of one byte an element: int8 or fp8 (e4m3), with a scale a token and KV head."""

from dataclasses import dataclass

import torch
from torch import Tensor

GREATEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # of the numbers that a cache's type holds


@dataclass(frozen=True, slots=True)
class KVScales:
    """What the numbers of a quantised cache are multiplied with. Any float dtype, any strides that the two share."""

    key: Tensor  # [num_blocks, block_size, num_kv_heads]
    value: Tensor  # [num_blocks, block_size, num_kv_heads]


def quantise(x: Tensor, dtype: torch.dtype, scale_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x as numbers of `dtype`, a key of GREATEST, and the scales over its last dimension.

    The scale makes the greatest of |x| the greatest number, and is rounded before anything is divided by it.
    """
    greatest = GREATEST[dtype]
    x = x.float()
    scales = (x.abs().amax(dim=-1) / greatest).to(scale_dtype)
    divisors = torch.where(scales == 0, 1.0, scales.float()).unsqueeze(-1)
    numbers = (x / divisors).clamp_(-greatest, greatest)
    return (numbers if dtype.is_floating_point else numbers.round_()).to(dtype), scales


def supports(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels on a device read caches of a dtype: fp8 needs an NVIDIA GPU of compute capability 8.9."""
    if dtype not in GREATEST:
        return dtype.is_floating_point
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return dtype is torch.int8 or not is_nvidia or torch.cuda.get_device_capability(device) >= (8, 9)
