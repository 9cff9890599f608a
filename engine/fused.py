"""Fused parts, put into transformers' models by replacing modules: one mechanism for all architectures.

Projections of the same input become one matmul. RMSNorm becomes torch's own. On a CPU with bfloat16 units, weights are
kept in oneDNN's packed layout, which a plain linear layer would otherwise make anew at every call.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # projections of one input, by attribute name
PACKED_FOR_ROWS = 32  # rows that oneDNN optimises the layout for; others work as well


def fuse(model: PreTrainedModel) -> None:
    """Replace what can be fused, in place; what a model builds otherwise stays as it is. After moving devices."""
    packs = model.device.type == "cpu" and model.dtype is torch.bfloat16 and _has_native_bfloat16()
    for parent in list(model.modules()):
        for names in SIBLINGS:
            linears = [child for name in names if type(child := getattr(parent, name, None)) is nn.Linear]
            if len(linears) == len(names):
                siblings = Siblings(linears, packed=packs)
                for index, name in enumerate(names):
                    setattr(parent, name, Sibling(siblings, index))
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and packs:
                setattr(parent, name, PackedLinear(child.weight, child.bias))
            elif type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, _plain_rms_norm(child) or child)


class PackedLinear(nn.Module):
    """A bfloat16 linear layer on the CPU, its weight packed once."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        with torch.no_grad():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_FOR_ROWS)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return output


class Siblings(nn.Module):
    """Several linear layers of one input as one: whichever is called first computes all."""

    def __init__(self, linears: Sequence[nn.Linear], *, packed: bool) -> None:
        super().__init__()
        with torch.no_grad():
            weight = torch.cat([linear.weight for linear in linears])
            bias = _joined_bias(linears)
        self.linear: nn.Module = PackedLinear(weight, bias) if packed else _linear(weight, bias)
        self.sizes = [linear.out_features for linear in linears]
        self._input: Tensor | None = None
        self._outputs: dict[int, Tensor] = {}

    def take(self, index: int, x: Tensor) -> Tensor:
        """Return the output of layer `index` for `x`, [..., out_features], a view."""
        if self._input is not x or index not in self._outputs:
            self._input = x
            self._outputs = dict(enumerate(self.linear(x).split(self.sizes, dim=-1)))
        output = self._outputs.pop(index)
        if not self._outputs:
            self._input = None  # a later tensor may be the same object: its content would be another
        return output


class Sibling(nn.Module):
    """One of the layers that `Siblings` computes together, in the place of the original."""

    def __init__(self, siblings: Siblings, index: int) -> None:
        super().__init__()
        self.siblings = siblings
        self._index = index

    def forward(self, x: Tensor) -> Tensor:
        return self.siblings.take(self._index, x)


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension (Zhang and Sennrich 2019), in torch's own operator."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def _plain_rms_norm(norm: nn.Module) -> RMSNorm | None:
    """Return the replacement of a norm that computes just that, judged by what it does: some add 1 to the weight."""
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(weight, Tensor) or weight.ndim != 1 or not isinstance(eps, float):
        return None
    replacement = RMSNorm(weight, eps)
    probe = torch.linspace(-3, 3, 2 * weight.numel(), dtype=weight.dtype, device=weight.device).view(2, -1)
    with torch.no_grad():
        same = torch.allclose(norm(probe).float(), replacement(probe).float(), rtol=2**-6, atol=1e-5)
    return replacement if same else None


def _joined_bias(linears: Sequence[nn.Linear]) -> nn.Parameter | None:
    """Return the biases in a row, zeros where a layer has none; None when no layer has one."""
    biases: list[Tensor | None] = [linear.bias for linear in linears]
    if not any(isinstance(bias, Tensor) for bias in biases):
        return None
    zeros = [linear.weight.new_zeros(linear.out_features) for linear in linears]
    parts = [zero if bias is None else bias for zero, bias in zip(zeros, biases, strict=True)]
    return nn.Parameter(torch.cat(parts), requires_grad=False)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def _has_native_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
