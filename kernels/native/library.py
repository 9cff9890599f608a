"""The compiled kernels as functions of tensors. All tensors are bfloat16 on the CPU."""

import ctypes
from ctypes import POINTER, c_float, c_int64, c_void_p

import torch
from torch import Tensor

from kernels.native.planning import DecodePlan, PlanStruct
from kernels.score_rules import ScoreRules

LANES = 16  # widths are multiples of


class NativeKernels:
    """The functions of one compiled file."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises AttributeError for a file that lacks one."""
        self._rms_norm = library.pagemill_rms_norm
        self._rms_norm.argtypes = [c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float]
        self._silu_mul = library.pagemill_silu_mul
        self._silu_mul.argtypes = [c_void_p, c_void_p, c_int64, c_int64]
        self._rotate_and_store = library.pagemill_rotate_and_store
        self._rotate_and_store.argtypes = [c_void_p] * 6 + [c_int64] * 5
        self._decode_attention = library.pagemill_decode_attention
        self._decode_attention.argtypes = [
            POINTER(PlanStruct),
            c_void_p,
            c_int64,
            *[c_void_p] * 4,
            c_int64,
            c_int64,
            c_float,
            c_void_p,
            c_void_p,
        ]
        for function in (self._rms_norm, self._silu_mul, self._rotate_and_store, self._decode_attention):
            function.restype = None

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return x / rms(x) * weight over the last dimension, a multiple of 16; x is contiguous."""
        output = torch.empty_like(x)
        width = x.shape[-1]
        self._rms_norm(x.data_ptr(), weight.data_ptr(), output.data_ptr(), x.numel() // width, width, eps)
        return output

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up: [..., 2 * width] to [..., width], a multiple of 16; gate_up is contiguous."""
        width = gate_up.shape[-1] // 2
        output = gate_up.new_empty(*gate_up.shape[:-1], width)
        self._silu_mul(gate_up.data_ptr(), output.data_ptr(), output.numel() // width, width)
        return output

    def rotate_and_store(
        self,
        qkv: Tensor,
        num_heads: int,
        cos: Tensor,
        sin: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        """Rotate the queries in place; put the rotated keys and the values into their slots.

        qkv: [num_tokens, num_heads + 2 * num_kv_heads, head_dim], contiguous, head_dim a multiple of 32. cos, sin:
        [num_tokens, head_dim], contiguous. Caches as in `engine.kv_cache` on a CPU. slot_mapping: [num_tokens], int64.
        """
        num_tokens, num_all, head_dim = qkv.shape
        self._rotate_and_store(
            qkv.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            slot_mapping.data_ptr(),
            num_tokens,
            num_heads,
            (num_all - num_heads) // 2,
            head_dim,
            key_cache.stride(2) // head_dim,
        )

    def decode_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: DecodePlan, rules: ScoreRules, output: Tensor
    ) -> None:
        """Write the planned rows of `output`, [num_tokens, num_heads, head_dim], contiguous. The caches' memory has KV
        heads first. The rules have no softcap; their window is in the plan."""
        head_dim = query.shape[2]
        if query.stride()[1:] != (head_dim, 1):  # only rows may be apart
            query = query.contiguous()
        parts = torch.empty(plan.num_parts * (head_dim + 2), dtype=torch.float32)
        slopes, sinks = (None if x is None else x.float().contiguous() for x in (rules.slopes, rules.sinks))
        self._decode_attention(
            plan.struct,
            query.data_ptr(),
            query.stride(0),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            output.data_ptr(),
            parts.data_ptr(),
            head_dim,
            key_cache.stride(2) // head_dim,
            rules.scale,
            None if slopes is None else slopes.data_ptr(),
            None if sinks is None else sinks.data_ptr(),
        )
