"""Fused parts, put into transformers' models by replacing modules: one mechanism for all architectures.

Projections of the same input become one matmul, held as `engine.linears` says. RMSNorm becomes torch's own.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from engine.attention_layers import UnsupportedModel
from engine.linears import LinearMaker, Numerics
from engine.memory import FilePages
from engine.row_tiles import EvenActivation, RowTiles, is_uneven
from kernels.native.library import NativeKernels

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # projections of one input, by attribute name
ACTIVATION_MODULES = {"transformers.activations", "torch.nn.modules.activation"}


def fuse(model: PreTrainedModel, numerics: Numerics, native: NativeKernels | None = None) -> None:
    """Replace what can be fused, in place; what a model builds otherwise stays as it is. After moving devices. `native`
    are the C kernels, for a model in bfloat16 on a CPU.

    Raises UnsupportedModel for numerics that the model's device does not have.
    """
    maker = LinearMaker(numerics, model.device, model.dtype, native)
    head, pages = model.get_output_embeddings(), FilePages()
    uneven: dict[type[nn.Module], bool] = {}
    for parent in list(model.modules()):
        for names in SIBLINGS:
            linears = [child for name in names if type(child := getattr(parent, name, None)) is nn.Linear]
            if len(linears) == len(names):
                siblings = Siblings(linears, maker)
                for linear in linears:
                    pages.forget(linear.weight)
                for index, name in enumerate(names):
                    setattr(parent, name, Sibling(siblings, index))
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and not _is_only_read(parent, name):
                make = maker.make_head if child is head else maker.make
                setattr(parent, name, make(child.weight, child.bias))
                if child is not head and maker.copies:  # the head's may be the embedding's too
                    pages.forget(child.weight)
            elif type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, _plain_rms_norm(child, model.dtype) or child)
            elif numerics.batch_invariant and _is_activation(child) and model.device.type == "cpu":
                if type(child) not in uneven:
                    uneven[type(child)] = is_uneven(child, model.dtype)
                setattr(parent, name, EvenActivation(child) if uneven[type(child)] else child)
    if numerics.batch_invariant:
        _refuse_other_weights(model)


def _refuse_other_weights(model: PreTrainedModel) -> None:
    """Raise UnsupportedModel for a matrix of weights that is neither in tiles nor looked up: experts, for example."""
    in_tiles = {part for tiles in model.modules() if isinstance(tiles, RowTiles) for part in tiles.modules()}
    for name, module in model.named_modules():
        if module in in_tiles or isinstance(module, nn.Embedding):
            continue
        if any(parameter.ndim > 1 for parameter in module.parameters(recurse=False)):
            raise UnsupportedModel(
                f"batch_invariant is asked for, but its {name} ({type(module).__name__}) multiplies in its own way"
            )


class Siblings(nn.Module):
    """Several linear layers of one input as one: whichever is called first computes all."""

    def __init__(self, linears: Sequence[nn.Linear], maker: LinearMaker) -> None:
        super().__init__()
        with torch.no_grad():
            weight = torch.cat([linear.weight for linear in linears])
            bias = _joined_bias(linears)
        self.linear = maker.make(weight, bias)
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


def _is_only_read(parent: nn.Module, name: str) -> bool:
    """Whether a module takes a linear layer's weight, and does not call the layer: LongCat's router does."""
    return name == "classifier" and type(parent).__name__.endswith("Router")


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension (Zhang and Sennrich 2019), in torch's own operator."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def _plain_rms_norm(norm: nn.Module, dtype: torch.dtype) -> RMSNorm | None:
    """Return the replacement of a norm that computes just that, judged by what it does: some add 1 to the weight.

    None of one whose weight has another type than the model, as gpt-oss's in float16: torch's operator takes one.
    """
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(weight, Tensor) or weight.ndim != 1 or not isinstance(eps, float) or weight.dtype is not dtype:
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


def _is_activation(module: nn.Module) -> bool:
    return type(module).__module__ in ACTIVATION_MODULES and not any(True for _ in module.parameters())
