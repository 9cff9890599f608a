"""What a model's config.json says of its quantised weights. Imports no torch: commands read it too."""

from collections.abc import Callable, Mapping
from typing import Any

from engine.quantisation import MXFP4_BITS, TABLES, Layout, Quantisation, UnsupportedQuantisation

SECTIONS = ("quantization_config", "compression_config")  # of a config.json, either of which tells
SUPPORTED = "awq, bitsandbytes, compressed-tensors, fp8, gptq and mxfp4"
GPTQ_BITS = (2, 4, 8)
PACKED_BITS = (4, 8)
COMPRESSED_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")


def read_quantisation(config: Mapping[str, Any]) -> Quantisation | None:
    """Return what a model's config.json says, None of weights that are not quantised.

    Raises UnsupportedQuantisation for a method, or a variant of one, that we do not know.
    """
    found = _section(config)
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise UnsupportedQuantisation(f"its quantization_config is {found!r}; it must be an object")
    method = found.get("quant_method")
    reader = READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise UnsupportedQuantisation(f"its weights are quantised by {method!r}; supported are {SUPPORTED}")
    try:
        return reader(found)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnsupportedQuantisation(f"its quantization_config, of {method}, is malformed: {error}") from error


def without_quantisation(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json that says nothing of quantisation."""
    kept = {key: value for key, value in config.items() if key not in SECTIONS}
    if isinstance(kept.get("text_config"), Mapping):
        kept["text_config"] = without_quantisation(kept["text_config"])
    return kept


def _section(config: Mapping[str, Any]) -> object:
    for holder in (config, config.get("text_config")):
        for key in SECTIONS:
            if isinstance(holder, Mapping) and holder.get(key) is not None:
                return holder[key]
    return None


def _read_awq(found: Mapping[str, Any]) -> Quantisation:
    _check("awq", found, bits=(4,), zero_point=(True,), backend=(None, "auto", "autoawq"))
    version = found.get("version") or found.get("format") or "gemm"
    _check("awq", {"version": str(version).lower()}, version=("gemm",))
    return Quantisation(name="AWQ 4 bit", layout=Layout.AWQ, bits=4, block=(1, _group_size("awq", found)))


def _read_gptq(found: Mapping[str, Any]) -> Quantisation:
    written = found.get("checkpoint_format") or found.get("format") or "gptq"
    _check("gptq", found, bits=GPTQ_BITS, is_marlin_format=(None, False), pack_dtype=(None, "int32"))
    _check("gptq", {"checkpoint_format": written}, checkpoint_format=("gptq", "gptq_v2"))
    if any(not str(pattern).startswith("-") for pattern in found.get("dynamic") or {}):
        raise UnsupportedQuantisation(
            "its weights are quantised by gptq with dynamic settings; one for all is supported"
        )
    bits = int(found["bits"])
    return Quantisation(
        name=f"GPTQ {bits} bit",
        layout=Layout.GPTQ,
        bits=bits,
        block=(1, _group_size("gptq", found)),
        zero_offset=int(written == "gptq"),  # the first format stores zero points less one
    )


def _read_fp8(found: Mapping[str, Any]) -> Quantisation:
    block = found.get("weight_block_size")
    return Quantisation(
        name="FP8", layout=Layout.SCALED, bits=8, block=(None, None) if block is None else _block_size("fp8", block)
    )


def _read_mxfp4(found: Mapping[str, Any]) -> Quantisation:
    return Quantisation(name="MXFP4", layout=Layout.MXFP4, bits=MXFP4_BITS)


def _read_bitsandbytes(found: Mapping[str, Any]) -> Quantisation:
    """Each weight says itself how it is stored; here is only whether in 4 or in 8 bits."""
    four, eight = bool(found.get("load_in_4bit")), bool(found.get("load_in_8bit"))
    if four == eight:
        raise UnsupportedQuantisation(
            f"its weights are quantised by bitsandbytes with load_in_4bit {four} and load_in_8bit {eight}; "
            "one of them is needed"
        )
    if eight:
        return Quantisation(name="bitsandbytes 8 bit", layout=Layout.ROWS, bits=8)
    _check("bitsandbytes", found, bnb_4bit_quant_type=(None, *TABLES), bnb_4bit_quant_storage=(None, "uint8"))
    return Quantisation(name="bitsandbytes 4 bit", layout=Layout.TABLE, bits=4)


def _read_compressed(found: Mapping[str, Any]) -> Quantisation:
    method = "compressed-tensors"
    _check(method, found, quantization_status=(None, "compressed"), transform_config=(None, {}))
    _check(
        method, {"sparsity_config": (found.get("sparsity_config") or {}).get("format")}, sparsity_config=(None, "dense")
    )
    groups = list((found.get("config_groups") or {}).values())
    weights = [group.get("weights") or {} for group in groups]
    if not weights or any(_essence(one) != _essence(weights[0]) for one in weights):
        raise UnsupportedQuantisation(f"its weights are quantised by {method} in {len(weights)} ways; one is supported")
    formats = {group.get("format") or found.get("format") for group in groups}
    _check(method, {"format": formats.pop() if len(formats) == 1 else "mixed"}, format=COMPRESSED_FORMATS)
    form, bits = (groups[0].get("format") or found.get("format")), int(weights[0].get("num_bits") or 0)
    is_packed, number = form == "pack-quantized", weights[0].get("type", "int")
    _check(method, {"num_bits": bits}, num_bits=PACKED_BITS if is_packed else (8,))
    _check(
        method,
        {"type": number},
        type=("float",) if form == "float-quantized" else ("int",) if is_packed else ("int", "float"),
    )
    return Quantisation(
        name=f"compressed-tensors {bits} bit {number}",
        layout=Layout.PACKED if is_packed else Layout.SCALED,
        bits=bits,
        block=_strategy_block(method, weights[0]),
    )


def _essence(weights: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(weights.get(key) for key in ("num_bits", "type", "strategy", "group_size", "block_structure"))


def _strategy_block(method: str, weights: Mapping[str, Any]) -> tuple[int | None, int | None]:
    match weights.get("strategy"):
        case "tensor":
            return None, None
        case "channel":
            return 1, None
        case "group":
            return 1, _group_size(method, weights)
        case "block":
            return _block_size(method, weights.get("block_structure"))
        case other:
            supported = "tensor, channel, group or block"
            raise UnsupportedQuantisation(_refusal(method, "strategy", other, supported))


def _group_size(method: str, found: Mapping[str, Any]) -> int | None:
    size = found.get("group_size")
    if size == -1:
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise UnsupportedQuantisation(_refusal(method, "group_size", size, "a number of at least 1, or -1"))
    return size


def _block_size(method: str, block: object) -> tuple[int, int]:
    match block:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            raise UnsupportedQuantisation(_refusal(method, "the size of its blocks", block, "[rows, columns]"))


def _check(method: str, found: Mapping[str, Any], **supported: tuple[object, ...]) -> None:
    """Raise UnsupportedQuantisation unless each field named has one of the values."""
    for field, values in supported.items():
        if found.get(field) not in values:
            known = " or ".join(str(value) for value in values if value is not None)
            raise UnsupportedQuantisation(_refusal(method, field, found.get(field), known))


def _refusal(method: str, field: str, value: object, supported: str) -> str:
    return f"its weights are quantised by {method} with {field} {value!r}; supported is {supported}"


READERS: dict[str, Callable[[Mapping[str, Any]], Quantisation]] = {
    "awq": _read_awq,
    "bitsandbytes": _read_bitsandbytes,
    "gptq": _read_gptq,
    "fp8": _read_fp8,
    "compressed-tensors": _read_compressed,
    "mxfp4": _read_mxfp4,
}
