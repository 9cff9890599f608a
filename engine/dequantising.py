"""Weights out of their quantised form, exactly: (number - zero point) * scale in float32, rounded to the type once.

Scales have at most 16 significant bits in the packed layouts, so their products are exact before that rounding.
"""

import json
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from engine.quantisation import Layout, Quantisation, UnsupportedQuantisation

FIELD_ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}  # 1 in each field of a word, by bits
# E2M1: a sign, two bits of exponent, one of mantissa.
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
NUMBERS_OF_ONE_BYTE = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)


def dequantise(quantisation: Quantisation, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Return a weight in `dtype`, [num_outputs, num_columns], from its tensors, keyed as in `StoredWeight`.

    MXFP4's weights are [num_experts, num_columns, num_outputs], as the model that has them takes them. Raises
    UnsupportedQuantisation for shapes and types that contradict each other.
    """
    match quantisation.layout:
        case Layout.AWQ:
            return _awq(quantisation, tensors, dtype)
        case Layout.GPTQ:
            return _gptq(quantisation, tensors, dtype)
        case Layout.PACKED:
            return _packed(quantisation, tensors, dtype)
        case Layout.SCALED:
            return _scaled(quantisation, tensors, dtype)
        case Layout.MXFP4:
            return _mxfp4(tensors["_blocks"], tensors["_scales"], dtype)
        case Layout.TABLE:
            return _table(tensors, dtype)
        case Layout.ROWS:
            return _rows(tensors, dtype)


def unpack(words: Tensor, bits: int) -> Tensor:
    """Return the numbers, uint8 [rows, num_words * 32 / bits], in int32 words [rows, num_words], lowest bits first."""
    if words.dtype is not torch.int32 or words.ndim != 2:
        raise UnsupportedQuantisation(
            f"packed numbers are {words.dtype} {list(words.shape)}; int32 words are supported"
        )
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    fields = words.contiguous().view(torch.uint8).unsqueeze(-1) >> shifts
    return fields.bitwise_and_((1 << bits) - 1).flatten(1)


def spread(values: Tensor, shape: tuple[int, int], block: tuple[int | None, int | None]) -> Tensor:
    """Return, for each element of a weight of that shape, its block's value, from one value a block.

    The last block of rows, or of columns, may be cut short. Raises UnsupportedQuantisation for another number of
    blocks.
    """
    heights = [size or extent for size, extent in zip(block, shape, strict=True)]
    grid = [-(-extent // size) for extent, size in zip(shape, heights, strict=True)]
    if list(values.shape) != grid and (values.ndim > 1 or values.numel() != grid[0] * grid[1]):
        raise UnsupportedQuantisation(
            f"scales or zero points are {list(values.shape)}; a weight of {list(shape)} has {grid}"
        )
    values = values.reshape(grid)
    for axis, (size, extent) in enumerate(zip(heights, shape, strict=True)):
        if values.shape[axis] > 1:
            values = values.repeat_interleave(size, dim=axis).narrow(axis, 0, extent)
    return values


def _awq(quantisation: Quantisation, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Words hold eight outputs of one column; scales and zero points are [num_groups, num_outputs]."""
    numbers, zeros = (_awq_order(unpack(tensors[part], 4)) for part in (".qweight", ".qzeros"))
    shape, (rows, columns) = (numbers.shape[0], numbers.shape[1]), quantisation.block
    zeros, scales = (spread(values, shape, (columns, rows)) for values in (zeros, tensors[".scales"]))
    return _product(numbers, zeros, scales, dtype).t().contiguous()


def _awq_order(fields: Tensor) -> Tensor:
    """Fields of a word hold columns 0, 2, 4, 6, then 1, 3, 5, 7."""
    return fields.view(fields.shape[0], -1, 2, 4).transpose(2, 3).flatten(1)


def _gptq(quantisation: Quantisation, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Words hold columns of one output. A column's group is what g_idx says, or its place tells."""
    numbers = unpack(tensors[".qweight"].t(), quantisation.bits)  # [num_outputs, num_columns]
    words = tensors[".qzeros"]
    if quantisation.zero_offset:
        words = words + FIELD_ONES[quantisation.bits]  # carries included, as writers subtract it
    zeros = unpack(words, quantisation.bits).t()  # [num_outputs, num_groups]
    return _grouped(quantisation, numbers, zeros, tensors[".scales"].t(), tensors.get(".g_idx"), dtype)


def _packed(quantisation: Quantisation, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Words hold columns of one output; signed numbers are stored with half of their range added."""
    num_outputs, num_columns = tensors[".weight_shape"].tolist()
    numbers = unpack(tensors[".weight_packed"], quantisation.bits)[:, :num_columns]
    scales, half = tensors[".weight_scale"], 1 << (quantisation.bits - 1)
    stored = tensors.get(".weight_zero_point")
    if stored is None:
        zeros = torch.full_like(scales, half, dtype=torch.int16)
    elif stored.dtype is torch.int32:  # packed along outputs
        zeros = unpack(stored.t(), quantisation.bits)[:, :num_outputs].t()
    else:
        zeros = stored.to(torch.int16) + half
    return _grouped(quantisation, numbers, zeros, scales, tensors.get(".weight_g_idx"), dtype)


def _grouped(
    quantisation: Quantisation,
    numbers: Tensor,
    zeros: Tensor,
    scales: Tensor,
    groups: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """numbers: [num_outputs, num_columns]; zeros, scales: [num_outputs, num_groups]; groups: [num_columns]."""
    shape = numbers.shape[0], numbers.shape[1]
    if groups is None:
        return _product(
            numbers, spread(zeros, shape, quantisation.block), spread(scales, shape, quantisation.block), dtype
        )
    index = groups.long()
    if index.shape != shape[1:] or scales.shape != zeros.shape or scales.shape[0] != shape[0]:
        raise UnsupportedQuantisation(
            f"scales are {list(scales.shape)}, zero points {list(zeros.shape)}, columns' groups {list(index.shape)}; "
            f"the weight is {list(shape)}"
        )
    if not 0 <= int(index.min()) <= int(index.max()) < scales.shape[1]:
        raise UnsupportedQuantisation(f"a column's group is beyond the {scales.shape[1]} groups that have scales")
    return _product(numbers, zeros[:, index], scales[:, index], dtype)


def _scaled(quantisation: Quantisation, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """A weight in FP8 or int8, of two dimensions or, with several experts in one, of more."""
    parts = ("", "_scale_inv") if "_scale_inv" in tensors else (".weight", ".weight_scale")
    numbers, scales = (tensors[part] for part in parts)
    if scales.dtype is torch.uint8:
        scales = _powers_of_two(scales)
    if numbers.ndim > 2 and scales.ndim == numbers.ndim:
        experts = [dict(zip(parts, expert, strict=True)) for expert in zip(numbers, scales, strict=True)]
        return torch.stack([_scaled(quantisation, expert, dtype) for expert in experts])
    if numbers.ndim != 2 or numbers.dtype not in NUMBERS_OF_ONE_BYTE:
        raise UnsupportedQuantisation(
            f"a weight with scales is {numbers.dtype} {list(numbers.shape)}; supported are rows of int8 or FP8"
        )
    shape = numbers.shape[0], numbers.shape[1]
    stored = tensors.get(".weight_zero_point")
    zeros = None if stored is None else spread(stored, shape, quantisation.block)
    return _product(numbers, zeros, spread(scales, shape, quantisation.block), dtype)


def _mxfp4(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """blocks: [..., num_outputs, num_blocks, bytes], two numbers a byte, the lower first; scales: one byte a block."""
    if blocks.dtype is not torch.uint8 or scales.dtype is not torch.uint8 or blocks.shape[:-1] != scales.shape:
        raise UnsupportedQuantisation(
            f"MXFP4 blocks are {blocks.dtype} {list(blocks.shape)}, their scales {scales.dtype} {list(scales.shape)}"
        )
    if blocks.ndim > 3:  # one expert at a time: what lies in between is eight times as large as the blocks
        return torch.stack([_mxfp4(*expert, dtype) for expert in zip(blocks, scales, strict=True)])
    fields = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    values = torch.tensor(FP4_VALUES)[fields.int()] * _powers_of_two(scales).unsqueeze(-1)
    return values.flatten(-2).t().to(dtype).contiguous()


def _table(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Bytes hold the places of two elements in the table, the first in the upper half. Scales of blocks may be places
    in a table themselves, with scales of their own."""
    state = next(tensor for part, tensor in tensors.items() if ".quant_state." in part)
    numbers, absmax = tensors[".weight"], tensors[".weight.absmax"].flatten()
    try:
        facts = json.loads(bytes(state.tolist()))
        shape, block = [int(size) for size in facts["shape"]], int(facts["blocksize"])
        if absmax.dtype is torch.uint8:
            shares = tensors[".weight.nested_quant_map"].float()[absmax.int()]
            nested = _each(tensors[".weight.nested_absmax"], int(facts["nested_blocksize"]), absmax.numel())
            absmax = shares * nested + float(facts["nested_offset"])
        places = torch.stack([numbers.flatten() >> 4, numbers.flatten() & 15], dim=-1).flatten()[: math.prod(shape)]
        values = tensors[".weight.quant_map"].float()[places.int()]
        return (values * _each(absmax, block, values.numel())).reshape(shape).to(dtype)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedQuantisation(f"its numbers, scales and tables contradict each other: {error}") from None


def _each(scales: Tensor, block: int, size: int) -> Tensor:
    """Return the scale of each of `size` elements, of which `block` share one. Raises ValueError."""
    if block < 1 or scales.numel() != -(-size // block):
        raise ValueError(f"{scales.numel()} scales of blocks of {block} for {size} elements")
    return scales.flatten().float().repeat_interleave(block)[:size]


def _rows(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """int8 as a share of 127 of its row's greatest."""
    numbers, greatest, order = tensors[".weight"], tensors[".SCB"], tensors.get(".weight_format")
    if numbers.dtype is not torch.int8 or numbers.ndim != 2 or greatest.shape != numbers.shape[:1]:
        raise UnsupportedQuantisation(
            f"rows are {numbers.dtype} {list(numbers.shape)}, their greatest numbers {list(greatest.shape)}"
        )
    if order is not None and order.any():
        raise UnsupportedQuantisation(f"its weight_format is {int(order)}; supported is 0, rows one after the other")
    return _product(numbers, None, greatest.float().unsqueeze(1) / 127, dtype)


def _powers_of_two(exponents: Tensor) -> Tensor:
    return exponents.contiguous().view(torch.float8_e8m0fnu).float()


def _product(numbers: Tensor, zeros: Tensor | None, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """All: [num_outputs, num_columns], or what can be spread to it."""
    exact = numbers.float()
    if zeros is not None:
        exact = exact.sub_(zeros.float())
    return exact.mul_(scales.float()).to(dtype).contiguous()
