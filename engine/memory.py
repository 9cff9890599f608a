"""Memory of the device: what the KV cache may take, and what the process has taken at most."""

import os
import resource
import sys

import torch

CPU_SHARE = 0.25  # of what is available: weights are loaded already, activations and the rest of the machine need room
CUDA_SHARE = 0.9  # of what is free after the weights
KIBIBYTE = 1024


def spare_kv_bytes(device: torch.device) -> int:
    """Return how many bytes the KV cache may take by default on a device whose weights are loaded."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_SHARE)
    return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * CPU_SHARE)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory held so far: of the device on a GPU, of the process (resident) on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KIBIBYTE
