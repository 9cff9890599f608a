"""Memory of the device: what the KV cache may take, what the process has taken at most, what its allocator keeps."""

import ctypes
import mmap
import os
import resource
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CPU_SHARE = 0.25  # of what is available: weights are loaded already, activations and the rest of the machine need room
CUDA_SHARE = 0.9  # of what is free after the weights
CPU_MOST_BYTES = 2 * 1024**3  # more only by setting it: another program may need the machine's memory tomorrow
KIBIBYTE = 1024
MAPPINGS = Path("/proc/self/maps")
HUGE_PAGE = 2 * 1024**2
MADV_COLLAPSE = 25  # Linux 6.1 (madvise(2)), which Python's mmap does not name

# glibc's mallopt parameters (malloc.h), and values for them
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
LARGEST_MMAP_THRESHOLD = 32 * 1024**2  # glibc refuses more
NEVER_TRIM = 2**31 - 1  # mallopt takes an int
TOP_PAD = 64 * 1024**2


def spare_kv_bytes(device: torch.device) -> int:
    """Return how many bytes the KV cache may take by default on a device whose weights are loaded."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_SHARE)
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(available * CPU_SHARE), CPU_MOST_BYTES)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory held so far: of the device on a GPU, of the process (resident) on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KIBIBYTE


class FilePages:
    """The pages of the files that a model's weights are mapped from. Where there are no such mappings, or the system
    does not say, there is nothing to forget."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []  # addresses [start, stop)
        try:
            lines = MAPPINGS.read_text().splitlines()
            self._madvise = ctypes.CDLL(None).madvise
        except (AttributeError, OSError):
            return
        for line in lines:
            addresses, permissions, _, _, _, *path = line.split(maxsplit=5)
            if path and path[0].startswith("/") and permissions.endswith("p"):  # private: others see no change
                start, _, stop = addresses.partition("-")
                self._ranges.append((int(start, 16), int(stop, 16)))

    def forget(self, weight: Tensor) -> None:
        """Give up the pages of a weight that nobody is going to read again: until all of a file is left, they would
        stand beside what was made of them."""
        start, stop = weight.data_ptr(), weight.data_ptr() + weight.nbytes
        if not any(first <= start and stop <= last for first, last in self._ranges):
            return
        _advise(self._madvise, start, stop, mmap.PAGESIZE, mmap.MADV_DONTNEED)


def use_huge_pages(tensors: Iterable[Tensor]) -> None:
    """Have the memory that tensors lie in made of pages of 2 MiB, where the system does that when it is asked.

    Weights are read from end to end in every step, and on a virtual machine each small page takes two walks to find. Of
    what lies near each other the pages between are taken too. 2 s a GiB, with Linux 6.1; an older one does it when it
    finds the time.
    """
    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return
    huge_page: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # of Linux alone
    if huge_page is None:
        return
    for start, stop in _runs((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors):
        for advice in (huge_page, MADV_COLLAPSE):
            _advise(madvise, start, stop, HUGE_PAGE, advice)


def _runs(ranges: Iterable[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return ranges of addresses [start, stop) joined with those that begin within a huge page of them."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and start < joined[-1][1] + HUGE_PAGE:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined


def _advise(madvise: Any, start: int, stop: int, page_size: int, advice: int) -> None:
    """Advise the system about the pages that lie wholly within [start, stop)."""
    first, last = -(-start // page_size) * page_size, stop // page_size * page_size
    if first < last:
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


def keep_freed_memory() -> None:
    """Let the C library reuse the memory of freed tensors instead of returning it to the system at once.

    A step on the CPU allocates thousands of tensors, and each one above the default threshold would be mapped, cleared
    by the kernel and unmapped again: about a sixth of the engine's time. Does nothing where there is no glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    mallopt(M_TRIM_THRESHOLD, NEVER_TRIM)
    mallopt(M_TOP_PAD, TOP_PAD)
