"""How the weights of a checkpoint lie in its tensors when they are quantised. Imports no torch: commands read it too.

Layouts are those of the programs that write such checkpoints: AutoAWQ and GPTQModel (int32 words of small numbers),
compressed-tensors, DeepSeek's FP8 in blocks, OpenAI's MXFP4, and bitsandbytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

WORD_BITS = 32
MXFP4_BITS = 4
TABLES = ("nf4", "fp4")  # of bitsandbytes
# What runs on quantised activations, or a quantised KV cache, would need. Weights do not depend on it.
ACTIVATION_PARTS = tuple(
    f".{name}_{part}"
    for name in ("input", "activation", "output", "q", "k", "v")
    for part in ("scale", "zero_point", "global_scale")
)
# Suffixes that only tensors of quantised weights have: beside weights that are not, they show that something is amiss.
TELLTALE = (
    *(".qweight", ".qzeros", ".scales", ".g_idx", ".SCB", ".absmax", ".quant_map"),
    *(".weight_packed", ".weight_scale", ".weight_scale_2", ".weight_zero_point", "_scale_inv", "_blocks", "_scales"),
)


class UnsupportedQuantisation(Exception):
    """Weights that we cannot dequantise, with the reason."""


class Layout(StrEnum):
    """How a quantised weight lies in its tensors."""

    AWQ = "awq"
    GPTQ = "gptq"
    PACKED = "packed"  # compressed-tensors, several numbers an int32
    SCALED = "scaled"  # a number an element, of 8 bits, and scales
    MXFP4 = "mxfp4"
    TABLE = "table"  # bitsandbytes' 4 bits: places in a table of values, and a scale for each block of elements
    ROWS = "rows"  # bitsandbytes' 8 bits: int8, and the greatest of each row


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Names of the tensors that make one weight: a stem, which `marker` shows, and a suffix each."""

    marker: str  # suffix of the tensor that every quantised weight has
    result: str  # suffix of the weight
    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()


PARTS: dict[Layout, tuple[Parts, ...]] = {
    Layout.AWQ: (Parts(marker=".qweight", result=".weight", needed=(".qzeros", ".scales")),),
    Layout.GPTQ: (Parts(marker=".qweight", result=".weight", needed=(".qzeros", ".scales"), optional=(".g_idx",)),),
    Layout.PACKED: (
        Parts(
            marker=".weight_packed",
            result=".weight",
            needed=(".weight_scale", ".weight_shape"),
            optional=(".weight_zero_point", ".weight_g_idx"),
        ),
    ),
    Layout.SCALED: (
        Parts(marker="_scale_inv", result="", needed=("",)),
        Parts(marker=".weight_scale", result=".weight", needed=(".weight",), optional=(".weight_zero_point",)),
    ),
    Layout.MXFP4: (Parts(marker="_blocks", result="", needed=("_scales",)),),
    Layout.TABLE: tuple(
        Parts(
            marker=f".weight.quant_state.bitsandbytes__{name}",
            result=".weight",
            needed=(".weight", ".weight.absmax", ".weight.quant_map"),
            optional=(".weight.nested_absmax", ".weight.nested_quant_map"),
        )
        for name in TABLES
    ),
    Layout.ROWS: (Parts(marker=".SCB", result=".weight", needed=(".weight",), optional=(".weight_format",)),),
}

NUMBERS = (
    ".qweight",
    ".weight_packed",
    ".weight",
    "",
    "_blocks",
)  # suffixes of the tensors with the weights themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """What a checkpoint says of its quantised weights."""

    name: str  # for a person
    layout: Layout
    bits: int  # a number
    block: tuple[int | None, int | None] = (1, None)  # rows and columns of a weight that share a scale; None: all
    zero_offset: int = 0  # to be added to each zero point that is stored


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """One quantised weight: its name, and the tensors that it is made of, by their suffix in `Parts`."""

    name: str
    tensors: Mapping[str, str]


def describe_weights(stored: str | None, dtype: str | None, *, is_int8: bool) -> str | None:
    """Return, for a person, how a model's weights are held: as stored, `dtype` (None: not known yet), int8 or not.

    None of weights that are as usual.
    """
    target = "when it is loaded" if dtype is None else f"to {dtype}"
    parts = [] if stored is None else [f"{stored}, dequantised {target}"]
    return "; ".join([*parts, "int8 weights"] if is_int8 else parts) or None


def stored_weights(quantisation: Quantisation, names: frozenset[str]) -> Iterator[StoredWeight]:
    """Yield the quantised weights among a checkpoint's tensors. Raises UnsupportedQuantisation for one that lacks
    a tensor."""
    for parts in PARTS[quantisation.layout]:
        for marker in sorted(names):
            stem = marker.removesuffix(parts.marker)
            if stem == marker or marker.endswith(ACTIVATION_PARTS):
                continue
            missing = [stem + suffix for suffix in parts.needed if stem + suffix not in names]
            if missing:
                raise UnsupportedQuantisation(f"its tensor {marker!r} stands without {missing[0]!r}")
            suffixes = (parts.marker, *parts.needed, *parts.optional)
            tensors = {suffix: stem + suffix for suffix in suffixes if stem + suffix in names}
            yield StoredWeight(stem + parts.result, tensors)


def dequantised_shapes(quantisation: Quantisation, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the weights that a checkpoint of these tensors holds, each with as many dimensions, and as many elements,
    as it has dequantised. Raises UnsupportedQuantisation."""
    plain = {name: shape for name, shape in shapes.items() if not name.endswith(ACTIVATION_PARTS)}
    for weight in stored_weights(quantisation, frozenset(shapes)):
        numbers = next(tensor for part, tensor in weight.tensors.items() if part in NUMBERS)
        *others, last = shapes[numbers]
        for tensor in weight.tensors.values():
            plain.pop(tensor, None)
        plain[weight.name] = (*others, last * _numbers_an_element(quantisation))
    return plain


def _numbers_an_element(quantisation: Quantisation) -> int:
    match quantisation.layout:
        case Layout.SCALED | Layout.ROWS:
            return 1
        case Layout.MXFP4 | Layout.TABLE:
            return 8 // MXFP4_BITS
        case _:
            return WORD_BITS // quantisation.bits
