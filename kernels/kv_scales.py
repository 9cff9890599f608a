"""Caches of one byte an element: int8 or fp8 (e4m3), with a scale a token and KV head."""

from dataclasses import dataclass

import torch
from torch import Tensor

GREATEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # of the numbers that a cache's type holds
FP8_CAPABILITY = (8, 9)  # of NVIDIA's GPUs
SMALLEST_DIVISOR = torch.finfo(torch.float32).tiny
MAX_GPU_HEAD_DIM = 128  # wider ones spill registers


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
    scales = x.abs().amax(dim=-1).div_(greatest).to(scale_dtype)
    divisors = scales.float().clamp_min(SMALLEST_DIVISOR)  # 0 is the scale of zeros
    numbers = (x / divisors.unsqueeze(-1)).clamp_(-greatest, greatest)
    return (numbers if dtype.is_floating_point else numbers.round_()).to(dtype), scales


def why_unsupported(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Return why the kernels on a device cannot read such caches, or None where they can."""
    if dtype not in GREATEST:
        return None if dtype.is_floating_point else f"{dtype} is no type of a cache"
    if device.type != "cuda":
        return None
    if head_dim > MAX_GPU_HEAD_DIM:
        return f"its heads are {head_dim} wide; on a GPU at most {MAX_GPU_HEAD_DIM} are possible"
    is_nvidia = torch.version.hip is None
    capability = torch.cuda.get_device_capability(device)
    if dtype is not torch.int8 and is_nvidia and capability < FP8_CAPABILITY:
        found, needed = (".".join(map(str, numbers)) for numbers in (capability, FP8_CAPABILITY))
        return f"the GPU has compute capability {found}; fp8 needs {needed}"
    return None
