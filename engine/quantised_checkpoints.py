"""Quantised checkpoints are written out once, in the type that the model computes in, as plain ones.

By our own code on every device: transformers' quantisers need a package, and a device, for each method, and what they
do without is not always the same.
"""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from engine.checkpoint_files import CONFIG_NAME, CheckpointFiles, find_file, fingerprint, read_config
from engine.dequantising import dequantise
from engine.made_once import made_once
from engine.quantisation import (
    ACTIVATION_PARTS,
    TELLTALE,
    Quantisation,
    UnsupportedQuantisation,
    stored_weights,
)
from engine.quantisation_config import without_quantisation

SHARD_BYTES = 2 << 30  # of a file that is written; also what is held in memory meanwhile, and one weight more
GENERATION_NAME = "generation_config.json"
FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def dequantised_folder(source: str, quantisation: Quantisation, dtype: torch.dtype, cache_dir: Path) -> Path:
    """Return a folder under `cache_dir` with the weights of a local folder or hub id in `dtype`, made once.

    Its name has a digest of the config and of the files (`fingerprint`). It has no tokenizer. Raises
    UnsupportedQuantisation, UnreadableCheckpoint, and OSError where there is no room.
    """
    config = read_config(source)
    with CheckpointFiles(source) as files:
        name = f"{Path(source).name}-{fingerprint(source)[:16]}-{str(dtype).removeprefix('torch.')}"
        return made_once(cache_dir / name, lambda folder: _write(folder, source, config, files, quantisation, dtype))


def refuse_remnants(names: Collection[str]) -> None:
    """Raise UnsupportedQuantisation where tensors that a model did not take belong to quantised weights.

    A config.json that does not say how its weights are quantised would have them read as if they were not.
    """
    for name in sorted(names):
        if name.endswith(TELLTALE):
            raise UnsupportedQuantisation(
                f"its tensor {name!r} is of quantised weights, of which its config says nothing"
            )


def refuse_lost_biases(folder: Path, names: Collection[str]) -> None:
    """Raise UnsupportedQuantisation where tensors that a model did not take are biases, unless they are 0.

    Writers of GPTQ give each layer one, whether the model has any or not.
    """
    biases = sorted(name for name in names if name.endswith(".bias"))
    if biases:
        with CheckpointFiles(str(folder)) as files:
            for name in biases:
                if files.read(name).any():
                    raise UnsupportedQuantisation(f"its bias {name!r} is none of the model's")


def _write(
    folder: Path,
    source: str,
    config: Mapping[str, Any],
    files: CheckpointFiles,
    quantisation: Quantisation,
    dtype: torch.dtype,
) -> None:
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(_shards(_weights(files, quantisation, dtype)), 1):
        name = f"model-{number:05}.safetensors"
        save_file(shard, folder / name, {"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), "utf-8")
    (folder / CONFIG_NAME).write_text(json.dumps(without_quantisation(config)), "utf-8")
    generation = find_file(source, GENERATION_NAME)  # has tokens that end an output
    if generation is not None:
        shutil.copyfile(generation, folder / GENERATION_NAME)


def _weights(files: CheckpointFiles, quantisation: Quantisation, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights by name: those that are quantised in `dtype`, the others as they are."""
    stored = {
        tensor: weight for weight in stored_weights(quantisation, files.names) for tensor in weight.tensors.values()
    }
    if not stored:
        raise UnsupportedQuantisation(f"its config says {quantisation.name}, but none of its weights is quantised so")
    done: set[str] = set()
    for name in files.in_order():
        weight = stored.get(name)
        if weight is None and not name.endswith(ACTIVATION_PARTS):
            yield name, _plain(name, files.read(name))
        elif weight is not None and weight.name not in done:
            done.add(weight.name)
            tensors = {suffix: files.read(tensor) for suffix, tensor in weight.tensors.items()}
            try:
                yield weight.name, dequantise(quantisation, tensors, dtype)
            except UnsupportedQuantisation as error:
                raise UnsupportedQuantisation(
                    f"its weight {weight.name!r} is not {quantisation.name}: {error}"
                ) from None


def _plain(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor that is not quantised. Raises UnsupportedQuantisation for one that looks as if it were."""
    if name.endswith(TELLTALE) or (name.endswith(".weight") and tensor.dtype not in FLOAT_TYPES):
        raise UnsupportedQuantisation(
            f"its tensor {name!r}, {tensor.dtype}, belongs to no quantised weight that is whole"
        )
    return tensor


def _shards(weights: Iterator[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    for name, tensor in weights:
        shard[name] = tensor
        if sum(one.nbytes for one in shard.values()) >= SHARD_BYTES:
            yield shard
            shard = {}
    if shard:
        yield shard
