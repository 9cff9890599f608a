"""The type of a GGUF file, from the key-value pairs that it begins with. Imports no torch: commands read it too."""

import struct
from pathlib import Path
from typing import BinaryIO

MAGIC = b"GGUF"
TYPE_KEY = b"general.file_type"
MOST_PAIRS = 10_000
MOST_BYTES = 1 << 20  # that are looked through: the general pairs come first
SCALAR_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes, by type of value
UINT32, STRING, ARRAY = 4, 8, 9  # types of values
# What most tensors of a file are, by its number; llama.cpp's names. Numbers that are left out are none any more.
FROM_0 = "F32 F16 Q4_0 Q4_1"
FROM_7 = (
    "Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS "
    "IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16"
)
FROM_36 = "TQ1_0 TQ2_0 MXFP4_MOE"
FILE_TYPES = {
    number: name
    for first, names in ((0, FROM_0), (7, FROM_7), (36, FROM_36))
    for number, name in enumerate(names.split(), first)
}


def gguf_type(path: Path) -> str | None:
    """Return the name of a file's type, for example Q4_1; None where it does not tell. Raises OSError."""
    with path.open("rb") as file:
        try:
            number = _find_type(file)
        except (struct.error, KeyError, OverflowError, OSError):  # cut short, or no GGUF
            number = None
    return None if number is None else FILE_TYPES.get(number)


def _find_type(file: BinaryIO) -> int | None:
    if file.read(4) != MAGIC:
        return None
    _version, _num_tensors, num_pairs = struct.unpack("<IQQ", file.read(20))
    for _ in range(min(num_pairs, MOST_PAIRS)):
        key = file.read(_length(file))
        (kind,) = struct.unpack("<I", file.read(4))
        if key == TYPE_KEY and kind == UINT32:
            return int(struct.unpack("<I", file.read(4))[0])
        _skip(file, kind)
        if file.tell() > MOST_BYTES:
            break
    return None


def _skip(file: BinaryIO, kind: int) -> None:
    """Go past a value. Raises KeyError for a type that there is not."""
    if kind == STRING:
        file.seek(_length(file), 1)
    elif kind == ARRAY:
        (element,) = struct.unpack("<I", file.read(4))
        number = _length(file)
        if element == STRING:
            for _ in range(min(number, MOST_BYTES)):
                file.seek(_length(file), 1)
                if file.tell() > MOST_BYTES:
                    break
        else:
            file.seek(number * SCALAR_SIZES[element], 1)
    else:
        file.seek(SCALAR_SIZES[kind], 1)


def _length(file: BinaryIO) -> int:
    return int(struct.unpack("<Q", file.read(8))[0])
