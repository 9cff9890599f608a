"""The compiled kernels as functions of tensors. All tensors are bfloat16 on the CPU unless it says otherwise."""

import ctypes
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernels.native.planning import MAX_HEAD_DIM, MAX_ROWS, PlanStruct, StepPlan
from kernels.native.tiles import GROUP, CacheStruct, MatrixStruct, TiledMatrix, row_tiles
from kernels.score_rules import ScoreRules

ANY_ROWS = 2**63 - 1


class HeadsStruct(ctypes.Structure):
    """`Heads` of scores.h."""

    _fields_ = [
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("scale", c_float),
        ("softcap", c_float),
        ("slopes", c_void_p),
        ("sinks", c_void_p),
    ]


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The shape of a layer's heads, and how their scores become weights."""

    struct: HeadsStruct
    kept: tuple[Tensor | None, ...]  # what the struct points into

    @classmethod
    def of(cls, num_heads: int, num_kv_heads: int, head_dim: int, rules: ScoreRules) -> "AttentionHeads":
        """The rules' window is the plan's matter."""
        kept = tuple(None if x is None else x.float().contiguous() for x in (rules.slopes, rules.sinks))
        pointers = (None if x is None else x.data_ptr() for x in kept)
        struct = HeadsStruct(num_heads, num_kv_heads, head_dim, rules.scale, rules.softcap or 0.0, *pointers)
        return cls(struct, kept)

    def num_parts(self, plan: StepPlan) -> int:
        """Return the float32 numbers that a plan's tasks leave to be merged."""
        return plan.num_members * int(self.struct.num_heads * (self.struct.head_dim + 2))


class NormStruct(ctypes.Structure):
    """`Norm` of decoder_layer.c."""

    _fields_ = [("weight", c_void_p), ("epsilon", c_float)]


class LayerStruct(ctypes.Structure):
    """`Layer` of decoder_layer.c."""

    _fields_ = [
        *((name, NormStruct) for name in ("input_norm", "mlp_norm")),
        *((name, MatrixStruct) for name in ("qkv", "output", "gate_up", "down")),
        ("heads", HeadsStruct),
        ("hidden_size", c_int64),
        ("mlp_size", c_int64),
    ]


class WantedStruct(ctypes.Structure):
    """`Wanted` of attention.h."""

    _fields_ = [("rows", c_void_p), ("is_wanted", c_void_p), ("num_rows", c_int64)]


class StepStruct(ctypes.Structure):
    """`Step` of decoder_layer.c."""

    _fields_ = [
        ("plan", PlanStruct),
        *((name, c_void_p) for name in ("slots", "cos", "sin")),
        ("wanted", WantedStruct),
    ]


class RoomStruct(ctypes.Structure):
    """`Room` of decoder_layer.c."""

    _fields_ = [(name, c_void_p) for name in ("normed", "qkv", "attended", "gated", "kept", "parts")]


class TilesDenied(OSError):
    """The processor has matrix tiles, and the system does not let this process use them."""


# What the compiled file says of itself: `pagemill_layout` of decoder_layer.c.
LAYOUT = (
    *map(ctypes.sizeof, (PlanStruct, HeadsStruct, CacheStruct, MatrixStruct, LayerStruct, StepStruct, RoomStruct)),
    MAX_ROWS,
    MAX_HEAD_DIM,
    GROUP,
)


class NativeKernels:
    """The functions of one compiled file."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises TilesDenied where the system does not let them run."""
        layout = tuple((c_int64 * len(LAYOUT)).in_dll(library, "pagemill_layout"))
        assert layout == LAYOUT, f"structures and limits are {LAYOUT} here, and {layout} in C"
        library.pagemill_prepare.restype = c_int
        if not library.pagemill_prepare():
            raise TilesDenied("the system does not let this process use the processor's matrix tiles")
        self.name = Path(library._name).name  # has a digest of what it was made from
        # Of matrices of int8: up to so many rows are multiplied faster as integers.
        self.most_integer_rows = c_int64.in_dll(library, "pagemill_most_integer_rows").value
        row_bytes = c_int64.in_dll(library, "pagemill_row_element").value
        self._row_dtype = torch.float32 if row_bytes == torch.float32.itemsize else torch.bfloat16
        self._linear = library.pagemill_linear
        self._linear.argtypes = [c_void_p, POINTER(MatrixStruct), c_void_p, c_void_p, c_int64, c_int64]
        self._store = library.pagemill_store
        self._store.argtypes = [POINTER(CacheStruct), *[c_void_p] * 5, *[c_int64] * 3]
        self._attention = library.pagemill_attention
        self._attention.argtypes = [
            POINTER(PlanStruct),
            POINTER(HeadsStruct),
            POINTER(CacheStruct),
            c_void_p,
            c_int64,
            c_void_p,
            c_void_p,
        ]
        self._decoder_layers = library.pagemill_decoder_layers
        self._decoder_layers.argtypes = [
            POINTER(LayerStruct),
            POINTER(CacheStruct),
            c_int64,
            POINTER(StepStruct),
            POINTER(RoomStruct),
            c_void_p,
            c_int64,
        ]
        for function in (self._linear, self._store, self._attention, self._decoder_layers):
            function.restype = None

    def row_tiles(self, num_rows: int, depth: int) -> Tensor:
        """Return room for row tiles of [num_rows, depth]."""
        return row_tiles(num_rows, depth, self._row_dtype)

    def linear(self, x: Tensor, matrix: TiledMatrix, struct: MatrixStruct, dtype: torch.dtype) -> Tensor:
        """Return x times a matrix, [..., num_columns], in bfloat16 or float32, from x: [..., depth]. `struct` is the
        matrix's."""
        assert x.shape[-1] == matrix.depth, "the rows are as wide as the matrix is deep"
        x = x.to(torch.bfloat16).contiguous()
        num_rows = x.numel() // matrix.depth
        output = torch.empty(*x.shape[:-1], matrix.num_columns, dtype=dtype)
        room = self.row_tiles(num_rows, matrix.depth)
        is_float = dtype is torch.float32
        self._linear(x.data_ptr(), byref(struct), output.data_ptr(), room.data_ptr(), num_rows, is_float)
        return output

    def store(self, key: Tensor, value: Tensor, cache: CacheStruct, slot_mapping: Tensor) -> None:
        """Put K and V, [num_tokens, num_kv_heads, head_dim], into their slots, [num_tokens], int64."""
        assert key.shape == value.shape, "K and V are as wide as each other"
        key, value = (x.to(torch.bfloat16) for x in (key, value))
        key, value = (x if x.stride(2) == 1 else x.contiguous() for x in (key, value))
        strides = [(c_int64 * 2)(*x.stride()[:2]) for x in (key, value)]
        pointers = (slot_mapping.data_ptr(), key.data_ptr(), value.data_ptr())
        self._store(byref(cache), *pointers, *strides, *key.shape)

    def attention(self, query: Tensor, cache: CacheStruct, plan: StepPlan, heads: AttentionHeads) -> Tensor:
        """Return the attention of all queries, [num_tokens, num_heads, head_dim], as is their own shape."""
        num_heads, head_dim = query.shape[1:]
        assert query.shape[0] == plan.num_tokens, "the queries are the plan's"
        query = query.to(torch.bfloat16)
        if query.stride()[1:] != (head_dim, 1):  # only rows may be apart
            query = query.contiguous()
        output = torch.empty(plan.num_tokens, num_heads, head_dim, dtype=torch.bfloat16)
        parts = torch.empty(heads.num_parts(plan), dtype=torch.float32)
        structs = (byref(plan.struct), byref(heads.struct), byref(cache))
        self._attention(*structs, query.data_ptr(), query.stride(0), parts.data_ptr(), output.data_ptr())
        return output

    def decoder_layers(
        self,
        layers: ctypes.Array[LayerStruct],
        first_cache: CacheStruct,
        step: StepStruct,
        room: RoomStruct,
        hidden: Tensor,
        *,
        ends: bool = False,
    ) -> None:
        """Run layers, one after the other, on hidden, [num_tokens, hidden_size], contiguous, in place. Writes the
        tokens' K and V. `first_cache` is the first layer's, in an array; those of the others lie behind it. If the last
        of them `ends` the model, it computes only the rows that the step says are wanted."""
        pointers = (byref(step), byref(room), hidden.data_ptr())
        self._decoder_layers(layers, byref(first_cache), len(layers), *pointers, ends)
