"""How a model's linear layers are held and multiplied: plain, in oneDNN's layout, in int8, in tiles of rows."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.attention_layers import UnsupportedModel
from engine.row_tiles import SIZES, RowTiles, agreeing_sizes
from kernels.kv_scales import quantise
from kernels.native.library import ANY_ROWS, NativeKernels
from kernels.native.tiles import TiledMatrix

PACKED_FOR_ROWS = 32  # rows that oneDNN optimises the layout for; others work as well
INT8_MOST = 127
DIGIT = 256  # two int8 digits of an activation: 256 * high + low
ACTIVATION_MOST = INT8_MOST * DIGIT + INT8_MOST
MOST_ROWS_BY_DIGITS = 128
NOTHING: list[float] = []  # arguments of an operation behind the product
TINY = torch.finfo(torch.float32).tiny  # instead of a scale of 0


class PackedLinear(nn.Module):
    """A linear layer on the CPU, its weight packed once."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        with torch.no_grad():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_FOR_ROWS)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return output


class NativeLinear(nn.Module):
    """A linear layer multiplied by the C kernels, its weight in their tiles: in bfloat16, or in int8 with a scale for
    each output. A row's result depends on nothing else, but for int8 in some: `most_integer_rows` tells."""

    def __init__(self, native: NativeKernels, matrix: TiledMatrix, output: torch.dtype = torch.bfloat16) -> None:
        """`output` is the type of what it returns: bfloat16, or float32, which is not rounded."""
        super().__init__()
        self.matrix = matrix
        self._struct = matrix.struct()
        self._native = native
        self._output = output

    def forward(self, x: Tensor) -> Tensor:
        return self._native.linear(x, self.matrix, self._struct, self._output)


class Int8Linear(nn.Module):
    """A linear layer on the CPU with weights of int8, a scale for each output.

    Only the weights are rounded. The activations of few rows keep 16 bits: each row is written in two int8 digits with
    a scale of its own, and both digits are multiplied in one product of integers, which is exact. At small batches the
    time goes into reading weights, so the second digit costs little. For many rows the weights are written out once
    more for every call, in the type of the activations, which costs little beside the product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        with torch.no_grad():
            numbers, self._scales = quantise(weight.detach(), torch.int8, torch.float32)
            self._packed = torch.ops.onednn.qlinear_prepack(numbers, None)  # its shape is the transposed one
            # Scales are applied outside of the product, which would do so in an order that depends on its rows.
            self._ones = torch.ones(weight.shape[0])
            self._zeros = torch.zeros(weight.shape[0], dtype=torch.int32)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., num_columns]. A row that is not finite gives one that is not."""
        rows = x.reshape(-1, x.shape[-1])
        output = self._by_digits(rows) if rows.shape[0] <= MOST_ROWS_BY_DIGITS else self._written_out(rows)
        if self.bias is not None:
            output += self.bias
        return output.to(x.dtype).view(*x.shape[:-1], -1)

    def _by_digits(self, rows: Tensor) -> Tensor:
        greatest = rows.abs().amax(dim=-1, keepdim=True).float().clamp_(min=TINY)
        # With 128 more the low byte is unsigned; with its highest bit flipped it is that minus 128, signed.
        numbers = (rows * (ACTIVATION_MOST / greatest)).round_().to(torch.int16).add_(128).bitwise_xor_(128)
        digits = numbers.view(torch.int8).view(*rows.shape, 2).permute(2, 0, 1).reshape(-1, rows.shape[1])
        inputs = (
            digits,
            1.0,
            0,
            self._packed,
            self._ones,
            self._zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            NOTHING,
            "",
        )
        products: Tensor = torch.ops.onednn.qlinear_pointwise(*inputs)
        low, high = products.chunk(2)
        return low.add_(high, alpha=DIGIT).mul_(self._scales).mul_(greatest.div_(ACTIVATION_MOST))

    def _written_out(self, rows: Tensor) -> Tensor:
        weight = self._packed.to_dense().t().to(rows.dtype)
        return functional.linear(rows, weight).float().mul_(self._scales)


class Weights(StrEnum):
    """How weights are held."""

    DTYPE = "dtype"  # in the type that the model computes in
    INT8 = "int8"  # the linear layers' in int8, one scale an output; on a CPU only


@dataclass(frozen=True, slots=True)
class Numerics:
    """What a model is asked to be beyond its type."""

    weights: Weights = Weights.DTYPE
    batch_invariant: bool = False  # a request's logits have the same bits whatever else is in its steps


class LinearMaker:
    """Makes the linear layers of one model."""

    def __init__(
        self, numerics: Numerics, device: torch.device, dtype: torch.dtype, native: NativeKernels | None = None
    ) -> None:
        """`native` are the C kernels, for a model in bfloat16 on a CPU. Raises UnsupportedModel for numerics that the
        device does not have."""
        if numerics.weights is Weights.INT8 and native is None and not has_int8(device):
            raise UnsupportedModel(f"weights=int8 needs a CPU with AVX-512 VNNI; the device is {device.type}")
        self._numerics = numerics
        self._native = native
        on_cpu = device.type == "cpu" and torch.backends.mkldnn.is_available()
        # Packed float32 layers are no faster than plain ones, but depend less on the number of rows.
        self._packs = on_cpu and (
            _has_native_bfloat16() if dtype is torch.bfloat16 else dtype is torch.float32 and numerics.batch_invariant
        )
        self._sizes: dict[tuple[int, ...], tuple[int, ...]] = {}

    @property
    def copies(self) -> bool:
        """Whether its layers hold weights of their own, not those that they are made from."""
        return self._native is not None or self._packs or self._numerics.weights is Weights.INT8

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """Return a layer for weight, [num_outputs, num_columns]."""
        layer = self._plain(weight, bias)
        if not self._numerics.batch_invariant or isinstance(layer, NativeLinear):
            return layer
        return RowTiles(layer, self._sizes_for(weight))

    def make_head(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """Return the layer whose outputs are logits: not rounded where that costs nothing."""
        if self._native is None or weight.dtype is not torch.bfloat16:
            return self.make(weight, bias)
        return NativeLinear(self._native, self._tiled(weight, bias), torch.float32)

    def _plain(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        if self._native is not None and weight.dtype is torch.bfloat16:
            return NativeLinear(self._native, self._tiled(weight, bias))
        if self._numerics.weights is Weights.INT8:
            return Int8Linear(weight, bias)
        return PackedLinear(weight, bias) if self._packs else _linear(weight, bias)

    def _tiled(self, weight: Tensor, bias: Tensor | None) -> TiledMatrix:
        assert self._native is not None, "only the C kernels want tiles"
        if self._numerics.weights is not Weights.INT8:
            return TiledMatrix.of(weight, bias)
        most = self._native.most_integer_rows
        # How a row is multiplied must not depend on how many there are.
        return TiledMatrix.int8(weight, bias, 0 if self._numerics.batch_invariant and most < ANY_ROWS else most)

    def _sizes_for(self, weight: Tensor) -> tuple[int, ...]:
        if self._numerics.weights is Weights.INT8:
            return tuple(size for size in SIZES if size <= MOST_ROWS_BY_DIGITS)  # integers add up exactly
        if tuple(weight.shape) not in self._sizes:
            self._sizes[tuple(weight.shape)] = agreeing_sizes(lambda like: self._plain(like, None), weight)
        return self._sizes[tuple(weight.shape)]


def has_int8(device: torch.device) -> bool:
    """Return whether the device multiplies int8 with sums of 32 bits; older CPUs overflow at 16."""
    return device.type == "cpu" and torch.backends.mkldnn.is_available() and torch.cpu._is_vnni_supported()


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def _has_native_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
