"""A self-test that a model has passed is not taken again, as long as nothing that it depends on has changed.

Only passing is kept: what was refused is tried again at every load.
"""

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint_files import UnreadableCheckpoint, fingerprint
from engine.linears import Numerics
from kernels.native.library import NativeKernels
from kernels.native.toolchain import cpu_flags

FOLDER_NAME = "self-tests"
PACKAGES = Path(__file__).parent, Path(__file__).parent.parent / "kernels"
SOURCES = frozenset({".py", ".c", ".h"})


class SelfTestRecord:
    """Whether a model in one environment has passed its self-test."""

    def __init__(self, cache_dir: Path, facts: Mapping[str, Any]) -> None:
        """`facts` are all that the test's outcome depends on."""
        self._content = json.dumps(facts, sort_keys=True)
        self._path = cache_dir / FOLDER_NAME / f"{hashlib.sha256(self._content.encode()).hexdigest()[:32]}.json"

    def has_passed(self) -> bool:
        """Return whether it passed before."""
        try:
            return self._path.read_text("utf-8") == self._content
        except (OSError, ValueError):
            return False

    def keep(self) -> None:
        """Note that it has passed. Where there is no room for that, it is tested again next time."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._path.parent)
            try:
                with open(descriptor, "w", encoding="utf-8") as file:
                    file.write(self._content)
                os.replace(name, self._path)
            except OSError:
                os.unlink(name)
                raise


def self_test_record(
    cache_dir: Path,
    source: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    numerics: Numerics,
    native: NativeKernels | None,
    is_long: bool = False,
) -> SelfTestRecord | None:
    """Return the record for a model of a local folder or hub id, whose files are here; None where they tell nothing.
    `is_long`: with LongRoPE's frequencies for long sequences."""
    try:
        weights = fingerprint(source)
    except UnreadableCheckpoint:
        return None
    facts = {
        "weights": weights,
        "dtype": str(dtype),
        "numerics": asdict(numerics),
        "is_long": is_long,
        "device": _device_facts(device),
        "kernels": None if native is None else native.name,
        "source": _source_digest(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("torch", "transformers", "triton")},
    }
    return SelfTestRecord(cache_dir, facts)


def _device_facts(device: torch.device) -> list[Any]:
    if device.type == "cuda":
        versions = torch.version.cuda, torch.version.hip
        return ["cuda", torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device), versions]
    return [device.type, cpu_flags(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]


def _source_digest() -> str:
    """Return a digest of our own code, Python and C."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted(path for path in package.rglob("*") if path.suffix in SOURCES):
            digest.update(str(path.relative_to(package)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
