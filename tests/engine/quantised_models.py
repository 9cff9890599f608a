"""Quantised checkpoints of tiny models, packed number by number, with the weights that their numbers stand for.

Nothing here is shared with the code under test: numbers are put into words one at a time, as the formats say.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # columns that the fields of a word hold, from the lowest bits up
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Numbers:
    """A weight in small numbers, with what they stand for."""

    numbers: list[list[int]]  # [num_outputs][num_columns]
    zeros: list[list[int]]  # [num_outputs][num_groups]
    scales: Tensor  # [num_outputs, num_groups]
    groups: list[int]  # [num_columns]

    def weight(self) -> Tensor:
        """Return the weight in float32, one element at a time."""
        scales = self.scales.double().tolist()
        rows = [
            [(number - zeros[group]) * row[group] for number, group in zip(numbers, self.groups, strict=True)]
            for numbers, zeros, row in zip(self.numbers, self.zeros, scales, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.float64).float()


@dataclass(frozen=True)
class Stored:
    """The tensors of one quantised weight by their suffix, and the weight."""

    tensors: dict[str, Tensor]
    weight: Tensor  # float32


def in_groups(
    weight: Tensor, bits: int, groups: Sequence[int], scale_dtype: torch.dtype, *, symmetric: bool
) -> Numbers:
    """Round each group of a row to numbers of so many bits."""
    most, num_groups = (1 << bits) - 1, max(groups) + 1
    scales = torch.ones(weight.shape[0], num_groups)
    zeros = [[0] * num_groups for _ in range(weight.shape[0])]
    for group in range(num_groups):
        columns = weight[:, [column for column, of in enumerate(groups) if of == group]]
        low, high = columns.amin(1).clamp(max=0), columns.amax(1).clamp(min=0)
        scales[:, group] = (high - low) / most if not symmetric else 2 * columns.abs().amax(1) / most
        for row in range(weight.shape[0]):
            zero = -low[row] / scales[row, group]
            zeros[row][group] = (most + 1) // 2 if symmetric else min(most, max(0, round(zero.item())))
    scales = scales.to(scale_dtype)
    numbers = [
        [
            min(most, max(0, round(value / scales[row, group].item()) + zeros[row][group]))
            for value, group in zip(values, groups, strict=True)
        ]
        for row, values in enumerate(weight.tolist())
    ]
    return Numbers(numbers, zeros, scales, list(groups))


def word(fields: Sequence[int], bits: int) -> int:
    """Return the signed int32 word of these fields, the first in the lowest bits."""
    value = sum(field << (bits * place) for place, field in enumerate(fields))
    return value - (1 << 32) if value >= 1 << 31 else value


def words(rows: Sequence[Sequence[int]], bits: int) -> Tensor:
    """Return rows of numbers as rows of words, the last one padded with 0."""
    size = 32 // bits
    packed = [[word(row[start : start + size], bits) for start in range(0, len(row), size)] for row in rows]
    return torch.tensor(packed, dtype=torch.int32)


def transposed(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*rows, strict=True)]


def places(num_columns: int, group_size: int) -> list[int]:
    return [column // group_size for column in range(num_columns)]


def awq(weight: Tensor, group_size: int = 16) -> Stored:
    """AutoAWQ's layout "gemm"."""
    found = in_groups(weight, 4, places(weight.shape[1], group_size), torch.float16, symmetric=False)

    def reordered(rows: Sequence[Sequence[int]]) -> Tensor:
        return words(
            [[row[start + place] for start in range(0, len(row), 8) for place in AWQ_ORDER] for row in rows], 4
        )

    tensors = {
        "qweight": reordered(transposed(found.numbers)),
        "qzeros": reordered(transposed(found.zeros)),
        "scales": found.scales.t().contiguous(),
    }
    return Stored(tensors, found.weight())


def gptq(
    weight: Tensor,
    bits: int = 4,
    group_size: int = 16,
    *,
    symmetric: bool = False,
    version: int = 1,
    shuffled: bool = False,
    with_index: bool = True,
) -> Stored:
    """GPTQ's layout; `shuffled` as with desc_act, the columns of a group anywhere."""
    groups = places(weight.shape[1], group_size)
    if shuffled:
        order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(5)).tolist()
        groups = [groups[place] for place in order]
    found = in_groups(weight, bits, groups, torch.float16, symmetric=symmetric)
    zeros = words(transposed(found.zeros), bits)
    if version == 1:  # less one in each field, which borrows from the next where it is 0
        ones = word([1] * (32 // bits), bits)
        zeros = torch.tensor(
            [[(one - ones + (1 << 31)) % (1 << 32) - (1 << 31) for one in row] for row in zeros.tolist()]
        )
    tensors = {
        "qweight": words(found.numbers, bits).t().contiguous(),
        "qzeros": zeros.int(),
        "scales": found.scales.t().contiguous(),
    }
    if with_index:
        tensors["g_idx"] = torch.tensor(groups, dtype=torch.int32)
    return Stored(tensors, found.weight())


def packed(
    weight: Tensor, bits: int = 4, group_size: int = 16, *, symmetric: bool = True, ordered: bool = False
) -> Stored:
    """compressed-tensors' layout "pack-quantized"."""
    groups = places(weight.shape[1], group_size)
    if ordered:
        groups = groups[::-1]
    found = in_groups(weight, bits, groups, torch.bfloat16, symmetric=symmetric)
    tensors = {
        "weight_packed": words(found.numbers, bits),
        "weight_scale": found.scales,
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = words(transposed(found.zeros), bits).t().contiguous()
    if ordered:
        tensors["weight_g_idx"] = torch.tensor(groups, dtype=torch.int32)
    return Stored(tensors, found.weight())


def in_blocks(
    weight: Tensor,
    block: tuple[int, int],
    dtype: torch.dtype,
    scale_name: str,
    scale_dtype: torch.dtype = torch.float32,
) -> Stored:
    """A number of one byte an element, and a scale for each block; the last blocks may be cut short."""
    grid = [math.ceil(extent / size) for extent, size in zip(weight.shape, block, strict=True)]
    most = 127.0 if dtype is torch.int8 else torch.finfo(dtype).max
    scales = torch.ones(grid)
    for row in range(grid[0]):
        for column in range(grid[1]):
            scales[row, column] = (
                weight[row * block[0] :, column * block[1] :][: block[0], : block[1]].abs().max() / most
            )
    scales = scales.to(scale_dtype)
    factors = [
        [scales[row // block[0], column // block[1]].item() for column in range(weight.shape[1])]
        for row in range(weight.shape[0])
    ]
    numbers = (weight / torch.tensor(factors)).clamp(-most, most)
    numbers = numbers.round().to(dtype) if dtype is torch.int8 else numbers.to(dtype)
    products = [
        [number * factor for number, factor in zip(*pair, strict=True)]
        for pair in zip(numbers.double().tolist(), factors, strict=True)
    ]
    expected = torch.tensor(products, dtype=torch.float64).float()
    return Stored({"weight": numbers, scale_name: scales}, expected)


def mxfp4(weight: Tensor) -> Stored:
    """OpenAI's layout of experts, [num_experts, num_columns, num_outputs]: columns in blocks of 32."""
    experts, columns, outputs = weight.shape
    blocks = torch.zeros(experts, outputs, columns // 32, 16, dtype=torch.uint8)
    exponents = torch.zeros(experts, outputs, columns // 32, dtype=torch.uint8)
    expected = torch.zeros(weight.shape)
    for expert in range(experts):
        for output in range(outputs):
            for block in range(columns // 32):
                values = weight[expert, block * 32 : (block + 1) * 32, output].tolist()
                exponent = math.ceil(math.log2(max(map(abs, values)) / FP4[-1]))
                exponents[expert, output, block] = exponent + 127
                for place, value in enumerate(values):
                    size = min(range(8), key=lambda code: abs(FP4[code] - abs(value) / 2.0**exponent))
                    code = size + 8 * (value < 0)
                    blocks[expert, output, block, place // 2] |= code << 4 * (place % 2)
                    signed = -FP4[size] if value < 0 else FP4[size]
                    expected[expert, block * 32 + place, output] = signed * 2.0**exponent
    return Stored({"blocks": blocks, "scales": exponents}, expected)


def nearest(values: Sequence[float], value: float) -> int:
    """Return the place of the value that is nearest to one."""
    distances = [abs(one - value) for one in values]
    return distances.index(min(distances))


def table(weight: Tensor, name: str = "nf4", block: int = 64, *, nested: bool = False) -> Stored:
    """bitsandbytes' 4 bits: a place in a table for each element, the first of two in the upper half of a byte."""
    values = [-1.0, -0.7, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0]
    flat = weight.flatten().tolist()
    blocks = [flat[start : start + block] for start in range(0, len(flat), block)]
    greatest = torch.tensor([max(map(abs, one)) for one in blocks])
    facts: dict[str, Any] = {"quant_type": name, "blocksize": block, "dtype": "float32", "shape": list(weight.shape)}
    parts = {"weight.absmax": greatest}
    if nested:
        offset, outer = greatest.mean().item(), torch.tensor([0.5, 0.25])
        size = -(-len(blocks) // 2)  # blocks of blocks
        inner = torch.arange(-128, 128) / 128
        shares = [(one - offset) / outer[index // size].item() for index, one in enumerate(greatest.tolist())]
        places = [nearest(inner.tolist(), share) for share in shares]
        greatest = torch.tensor(
            [inner[place].item() * outer[index // size].item() + offset for index, place in enumerate(places)]
        )
        parts = {
            "weight.absmax": torch.tensor(places, dtype=torch.uint8),
            "weight.nested_absmax": outer,
            "weight.nested_quant_map": inner,
        }
        facts |= {"nested_blocksize": size, "nested_dtype": "float32", "nested_offset": offset}
    shares = [value / greatest[index // block].item() for index, value in enumerate(flat)]
    found = [nearest(values, share) for share in shares]
    packed_bytes = [16 * first + second for first, second in zip(found[::2], found[1::2], strict=True)]
    exact = [torch.tensor(values)[place] * greatest[index // block] for index, place in enumerate(found)]
    return Stored(
        {
            "weight": torch.tensor(packed_bytes, dtype=torch.uint8).unsqueeze(1),
            "weight.quant_map": torch.tensor(values),
            f"weight.quant_state.bitsandbytes__{name}": torch.tensor(
                list(json.dumps(facts).encode()), dtype=torch.uint8
            ),
            **parts,
        },
        torch.stack(exact).view(weight.shape),
    )


def by_row(weight: Tensor) -> Stored:
    """bitsandbytes' 8 bits: shares of 127 of a row's greatest."""
    greatest = weight.abs().amax(dim=1)
    numbers = [
        [round(value / most * 127) for value in row]
        for row, most in zip(weight.tolist(), greatest.tolist(), strict=True)
    ]
    exact = [[number * (most / 127) for number in row] for row, most in zip(numbers, greatest, strict=True)]
    return Stored(
        {
            "weight": torch.tensor(numbers, dtype=torch.int8),
            "SCB": greatest,
            "weight_format": torch.tensor(0, dtype=torch.uint8),
        },
        torch.tensor(exact),
    )


def write_checkpoint(
    folder: Path,
    model: PreTrainedModel,
    quantise: Callable[[Tensor], Stored],
    quantization: Mapping[str, Any],
    *,
    names: str | tuple[str, ...] = "_proj.weight",
    num_files: int = 1,
) -> None:
    """Save a model, the weights whose names end so quantised, and give the model what these then stand for."""
    tensors: dict[str, Tensor] = {}
    state = model.state_dict()
    for name, tensor in state.items():
        if name.endswith(names):
            stored = quantise(tensor.float())
            tensor.copy_(stored.weight.to(tensor.dtype))
            stem = f"{name.removesuffix('.weight')}." if name.endswith(".weight") else f"{name}_"
            tensors |= {stem + suffix: part for suffix, part in stored.tensors.items()}
        else:
            tensors[name] = tensor.clone()
    save(folder, tensors, num_files)
    config = model.config.to_dict() | {"quantization_config": dict(quantization)}
    (folder / "config.json").write_text(json.dumps(config, default=str), "utf-8")


def save(folder: Path, tensors: Mapping[str, Tensor], num_files: int = 1) -> None:
    """Write tensors to files, those of one weight to different ones if there are several."""
    folder.mkdir(parents=True, exist_ok=True)
    if num_files == 1:
        save_file(dict(tensors), folder / "model.safetensors")
        return
    files: dict[str, dict[str, Tensor]] = {f"model-{number}.safetensors": {} for number in range(num_files)}
    weight_map: dict[str, str] = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        weight_map[name] = f"model-{number % num_files}.safetensors"
        files[weight_map[name]][name] = tensor
    for file, content in files.items():
        save_file(content, folder / file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map}), "utf-8"
    )
