"""The fused decoder layer as one C kernel, or all of them, for models in bfloat16 on a CPU."""

from collections.abc import Sequence
from ctypes import Array
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.fused_layer import Embeddings, FusedLayer, Rotary, has_plain_parts
from engine.linears import NativeLinear
from engine.paged_model import ModelInput
from kernels.native.attending import NativePlan
from kernels.native.library import (
    AttentionHeads,
    LayerStruct,
    NativeKernels,
    NormStruct,
    RoomStruct,
    StepStruct,
    WantedStruct,
)
from kernels.native.tiles import TILE_DEPTH
from kernels.score_rules import ScoreRules


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What all layers of one shape share in a step."""

    step: StepStruct
    room: RoomStruct
    kept: tuple[object, ...]  # what the structs point into, and what the key is of


class NativeLayer(FusedLayer):
    """A layer with RMSNorm and SiLU. Over a cache that is not tiled, its parts are called one by one."""

    def __init__(self, layer: Any, head_dim: int, rules: ScoreRules, rotary: Rotary, native: NativeKernels) -> None:
        super().__init__(layer, head_dim, rules, rotary)
        self._native = native
        # Its own order of columns: see `_gate`.
        self.gate_up = NativeLinear(native, self.gate_up.matrix.interleaved())
        self._heads = AttentionHeads.of(self._num_heads, self._num_kv_heads, head_dim, rules)
        self._hidden_size, self._mlp_size = self.output.matrix.num_columns, self.down.matrix.depth
        norms = [NormStruct(norm.weight.data_ptr(), norm.eps) for norm in (self.input_norm, self.mlp_norm)]
        matrices = [linear.matrix.struct() for linear in (self.qkv, self.output, self.gate_up, self.down)]
        struct = LayerStruct(*norms, *matrices, self._heads.struct, self._hidden_size, self._mlp_size)
        self.structs = (LayerStruct * 1)(struct)  # of the layer alone

    @property
    def shape(self) -> tuple[object, ...]:
        """What layers have in common that can share a step and its room."""
        sizes = (self._hidden_size, self._mlp_size, self._num_heads, self._num_kv_heads, self._head_dim)
        return (*sizes, self._rules.window, self._rules.softcap is None)

    def forward(
        self, hidden: Tensor, *, position_embeddings: Embeddings, model_input: ModelInput, **_: object
    ) -> Tensor:
        """hidden: [1, num_tokens, hidden_size], which is changed in place and returned: it is the embedding's output or
        that of the layer before, which nobody else holds."""
        result = self.run(self.structs, hidden, position_embeddings, model_input)
        if result is None:
            return super().forward(hidden, position_embeddings=position_embeddings, model_input=model_input)
        return result

    def run(
        self, structs: Array[LayerStruct], hidden: Tensor, embeddings: Embeddings, model_input: ModelInput
    ) -> Tensor | None:
        """Run layers as `forward` does, this one and those after it, all of its shape and KV group; None over a cache
        that is not tiled."""
        plan = model_input.attention.plan_for(self.layer_index, self._rules, self._num_heads, self._num_kv_heads)
        if not isinstance(plan, NativePlan):
            return None
        hidden = hidden.contiguous()
        prepared = self._prepare(plan, embeddings, model_input)
        tiles = model_input.cache.tiles_of(self.layer_index)
        ends = self.layer_index + len(structs) == len(model_input.cache.groups)
        self._native.decoder_layers(structs, tiles, prepared.step, prepared.room, hidden, ends=ends)
        return hidden

    def _gate(self, gate_up: Tensor) -> Tensor:
        """The columns are sixteen of gate, the same of up, and so on."""
        by_tile = gate_up.unflatten(-1, (-1, 2, 16)).transpose(-3, -2).flatten(-2)
        return super()._gate(by_tile.flatten(-2))

    def _prepare(self, plan: NativePlan, embeddings: Embeddings, model_input: ModelInput) -> _Prepared:
        key = (self._hidden_size, self._mlp_size, self._num_all, self._head_dim, id(embeddings))
        prepared = plan.prepared.get(key)
        if not isinstance(prepared, _Prepared):
            prepared = plan.prepared[key] = self._prepared(plan, embeddings, model_input)
        return prepared

    def _prepared(self, plan: NativePlan, embeddings: Embeddings, model_input: ModelInput) -> _Prepared:
        cos, sin = (x[0].to(torch.bfloat16).contiguous() for x in embeddings)
        slot_mapping, num_tokens = model_input.slot_mapping(self.layer_index), plan.step.num_tokens
        rows = model_input.wanted_rows
        is_wanted = None if rows is None else torch.zeros(num_tokens, dtype=torch.bool).index_fill_(0, rows, True)
        num_kept = 0 if rows is None else len(rows)
        rooms = (
            self._native.row_tiles(num_tokens, self._hidden_size),
            torch.empty(num_tokens * self._num_all * self._head_dim, dtype=torch.bfloat16),
            self._native.row_tiles(num_tokens, self._num_heads * self._head_dim),
            self._native.row_tiles(num_tokens, self._mlp_size),
            torch.empty(num_kept * self._hidden_size, dtype=torch.bfloat16),
            torch.empty(self._heads.num_parts(plan.step), dtype=torch.float32),
        )
        pointers = (tensor.data_ptr() for tensor in (slot_mapping, cos, sin))
        wanted = WantedStruct(_pointer(rows), _pointer(is_wanted), num_kept)
        step = StepStruct(plan.step.struct, *pointers, wanted)
        room = RoomStruct(*(tensor.data_ptr() for tensor in rooms))
        return _Prepared(step, room, (embeddings, cos, sin, slot_mapping, rows, is_wanted, rooms))


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class NativeStack(nn.Module):
    """All of a model's layers as one: calling them one by one takes a twentieth of a step of one token."""

    def __init__(self, layers: Sequence[NativeLayer]) -> None:
        """`layers` have one shape, and one KV group."""
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._run = layers[0].run
        self._structs = (LayerStruct * len(layers))(*(layer.structs[0] for layer in layers))

    def forward(
        self, hidden: Tensor, *, position_embeddings: Embeddings, model_input: ModelInput, **_: object
    ) -> Tensor:
        """As `NativeLayer.forward`."""
        result = self._run(self._structs, hidden, position_embeddings, model_input)
        if result is not None:
            return result
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=position_embeddings, model_input=model_input)
        return hidden


def fits_native(layer: Any, head_dim: int) -> bool:
    """Whether the C kernel computes a layer's norms, products and activation, and its widths are whole tiles."""
    linears = (
        layer.self_attn.q_proj.siblings.linear,
        layer.self_attn.o_proj,
        layer.mlp.gate_proj.siblings.linear,
        layer.mlp.down_proj,
    )
    if not has_plain_parts(layer) or not all(isinstance(linear, NativeLinear) for linear in linears):
        return False
    norms = (layer.input_layernorm.weight, layer.post_attention_layernorm.weight)
    (q, k, v), (gate, up) = layer.self_attn.q_proj.siblings.sizes, layer.mlp.gate_proj.siblings.sizes
    hidden = norms[0].numel()
    shapes = ((q + k + v, hidden), (hidden, q), (gate + up, hidden), (hidden, up))
    if any(weight.dtype is not torch.bfloat16 or weight.numel() != hidden for weight in norms):
        return False
    if shapes != tuple((linear.matrix.num_columns, linear.matrix.depth) for linear in linears):
        return False
    return k == v and gate == up and not any(width % TILE_DEPTH for width in (head_dim, hidden, up))
