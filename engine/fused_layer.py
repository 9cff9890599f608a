"""A whole decoder layer in few operators, for the shape that most architectures share.

Norm, projections, rotary embedding, attention, add, norm, gated MLP, add: at small batches a step on the CPU spends
more time between such operators than in them. Where there are C kernels, they do all but the matrix products.

Whether a layer has that shape is judged by what it does: one that answers otherwise than its replacement (a norm of the
queries, a scaled residual, a partial rotation) is left as it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention_layers import UnsupportedModel
from engine.fused import RMSNorm, Sibling
from engine.kv_cache import KVCache
from engine.paged_model import ModelInput, PagedModel
from engine.probing import plan_of, probe_request
from kernels import ops
from kernels.native.library import LANES, NativeKernels
from kernels.score_rules import ScoreRules

CHILDREN = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_CHILDREN = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP_CHILDREN = {"gate_proj", "up_proj", "down_proj", "act_fn"}
PROBE_TOKENS = 5
BLOCK_SIZE = 4
# Of the output's standard deviation, the root mean square of differences: rounding, and no more.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 0.005, torch.bfloat16: 0.04}

Embeddings = tuple[Tensor, Tensor]  # cos and sin, each [1, num_tokens, head_dim]


class Rotary:
    """cos and sin of a step as the layers need them, prepared by the first layer for all."""

    def __init__(self) -> None:
        self._source: Embeddings | None = None
        self._prepared: Embeddings | None = None

    def take(self, embeddings: Embeddings) -> Embeddings:
        """Return cos, and sin with the sign of each half's rotation, each [num_tokens, 1, head_dim]."""
        if self._source is not embeddings or self._prepared is None:
            cos, sin = embeddings
            signed = sin[0].clone()
            signed[:, : sin.shape[-1] // 2].neg_()
            self._source, self._prepared = embeddings, (cos[0].unsqueeze(1), signed.unsqueeze(1))
        return self._prepared


class FusedLayer(nn.Module):
    """A pre-norm decoder layer with rotary embeddings and a gated MLP."""

    def __init__(self, layer: Any, head_dim: int, rules: ScoreRules, rotary: Rotary) -> None:
        """`layer` is transformers', its sibling projections joined already; `rules` are those it attends by."""
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.input_norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv, self.output = attention.q_proj.siblings.linear, attention.o_proj
        self.gate_up, self.down, self.act = mlp.gate_proj.siblings.linear, mlp.down_proj, mlp.act_fn
        self._head_dim = head_dim
        self._num_heads, self._num_kv_heads = (size // head_dim for size in attention.q_proj.siblings.sizes[:2])
        self._num_all = self._num_heads + 2 * self._num_kv_heads
        self.layer_index: int = attention.layer_idx
        self._rules = rules
        self._rotary = rotary

    def forward(
        self, hidden: Tensor, *, position_embeddings: Embeddings, model_input: ModelInput, **_: object
    ) -> Tensor:
        """hidden: [1, num_tokens, hidden_size]. Writes the tokens' K and V to the cache."""
        heads = self.qkv(self._norm(self.input_norm, hidden))
        query = self._rotate_and_store(heads.view(-1, self._num_all, self._head_dim), position_embeddings, model_input)
        (key_cache, value_cache), scales = model_input.cache.layer(self.layer_index)
        plan = model_input.attention.plan_for(self._rules, self._num_heads, self._num_kv_heads)
        attended = ops.paged_attention(query, key_cache, value_cache, plan, self._rules, scales)
        hidden = self.output(attended.view(1, -1, self._num_heads * self._head_dim)).add_(hidden)
        gated = self._gate(self.gate_up(self._norm(self.mlp_norm, hidden)))
        result: Tensor = self.down(gated).add_(hidden)
        return result

    def _norm(self, norm: nn.Module, hidden: Tensor) -> Tensor:
        normed: Tensor = norm(hidden)
        return normed

    def _rotate_and_store(self, heads: Tensor, embeddings: Embeddings, model_input: ModelInput) -> Tensor:
        """Return the rotated queries of `heads`, [num_tokens, num_all, head_dim]; K and V go to the cache."""
        cos, sin = self._rotary.take(embeddings)
        num_rotated = self._num_heads + self._num_kv_heads
        plain, value = heads[:, :num_rotated], heads[:, num_rotated:]
        rotated = torch.addcmul(plain * cos, plain.roll(self._head_dim // 2, dims=-1), sin)
        query, key = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
        (key_cache, value_cache), scales = model_input.cache.layer(self.layer_index)
        ops.store_kv(key, value, key_cache, value_cache, model_input.slot_mapping, scales)
        return query

    def _gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        gated: Tensor = self.act(gate).mul_(up)
        return gated


class NativeLayer(FusedLayer):
    """The same with C kernels between the matrix products. Its activation is SiLU."""

    def __init__(self, layer: Any, head_dim: int, rules: ScoreRules, rotary: Rotary, native: NativeKernels) -> None:
        super().__init__(layer, head_dim, rules, rotary)
        self._native = native

    def _norm(self, norm: nn.Module, hidden: Tensor) -> Tensor:
        assert isinstance(norm, RMSNorm), "only layers with plain norms are made native"
        return self._native.rms_norm(hidden, norm.weight, norm.eps)

    def _rotate_and_store(self, heads: Tensor, embeddings: Embeddings, model_input: ModelInput) -> Tensor:
        (key_cache, value_cache), scales = model_input.cache.layer(self.layer_index)
        if scales is not None:
            return super()._rotate_and_store(heads, embeddings, model_input)
        cos, sin = embeddings
        slots = model_input.slot_mapping
        self._native.rotate_and_store(heads, self._num_heads, cos[0], sin[0], key_cache, value_cache, slots)
        return heads[:, : self._num_heads]

    def _gate(self, gate_up: Tensor) -> Tensor:
        return self._native.silu_mul(gate_up)


def fuse_layers(model: PagedModel) -> None:
    """Replace each decoder layer that its fused form equals, in place. After `fuse`."""
    decoder = getattr(model.model, "model", None)
    layers, embed = getattr(decoder, "layers", None), getattr(decoder, "rotary_emb", None)
    if not isinstance(layers, nn.ModuleList) or embed is None:
        return
    rotary = Rotary()
    for index, layer in enumerate[Any](layers):
        if _has_the_parts(layer):
            expected = _probe(model, layer, layer.self_attn.layer_idx, embed)
            forms = _forms(layer, model, model.layers[index].head_dim, expected.rules, rotary) if expected.fits else ()
            layers[index] = next(
                (form for form in forms if _probe(model, form, form.layer_index, embed).equals(expected)), layer
            )


def _forms(layer: Any, model: PagedModel, head_dim: int, rules: ScoreRules, rotary: Rotary) -> Iterator[FusedLayer]:
    """Yield what may replace a layer, the fastest first."""
    if model.native is not None and _fits_native(layer, head_dim):
        yield NativeLayer(layer, head_dim, rules, rotary, model.native).eval()
    yield FusedLayer(layer, head_dim, rules, rotary).eval()


def _fits_native(layer: Any, head_dim: int) -> bool:
    """Whether the C kernels compute a layer's norms and its activation, and its widths are multiples of a vector."""
    norms = (layer.input_layernorm, layer.post_attention_layernorm)
    if not all(isinstance(norm, RMSNorm) for norm in norms) or not _is_silu(layer.mlp.act_fn):
        return False
    widths = (head_dim // 2, norms[0].weight.numel(), layer.mlp.gate_proj.siblings.sizes[0])
    return not any(width % LANES for width in widths)


def _is_silu(activation: Any) -> bool:
    """Judge by what it does: in a layer's output, a similar one would pass for rounding."""
    probe = torch.linspace(-6, 6, 97)
    with torch.inference_mode():
        return torch.allclose(activation(probe), torch.nn.functional.silu(probe), rtol=1e-5, atol=1e-6)


def _has_the_parts(layer: Any) -> bool:
    def children(module: Any) -> set[str]:
        return {name for name, _ in module.named_children()} if isinstance(module, nn.Module) else set()

    return (
        children(layer) == CHILDREN
        and children(layer.self_attn) == ATTENTION_CHILDREN
        and children(layer.mlp) == MLP_CHILDREN
        and isinstance(layer.self_attn.q_proj, Sibling)
        and isinstance(layer.mlp.gate_proj, Sibling)
    )


@dataclass(frozen=True, slots=True)
class _Probed:
    """What a layer made of random input."""

    rules: ScoreRules  # that it attended by
    fits: bool  # whether it rotates whole heads
    tensors: tuple[Tensor, ...]  # its output, its K and its V

    def equals(self, expected: "_Probed") -> bool:
        return all(
            found.shape == other.shape
            and bool(
                (found.float() - other.float()).square().mean().sqrt() <= TOLERANCE[other.dtype] * other.float().std()
            )
            for found, other in zip(self.tensors, expected.tensors, strict=True)
        )


def _probe(model: PagedModel, layer: nn.Module, layer_index: int, embed: Any) -> _Probed:
    """Run a layer on random input, through a cache of its own."""
    generator = torch.Generator().manual_seed(0)
    size = model.model.config.get_text_config().hidden_size
    hidden = torch.randn(1, PROBE_TOKENS, size, generator=generator).to(model.device, model.dtype)
    inputs = _probe_input(model)
    with torch.inference_mode():
        embeddings = embed(hidden, inputs.position_ids)
        output = layer(
            hidden,
            attention_mask=None,
            position_ids=inputs.position_ids,
            position_embeddings=embeddings,
            model_input=inputs,
        )
    rules = inputs.attention.last_rules
    if rules is None:
        raise UnsupportedModel(f"its layer {layer_index} does not call the attention function")
    fits = isinstance(output, Tensor) and embeddings[0].shape[-1] == model.layers[layer_index].head_dim
    return _Probed(rules, fits, (output, *inputs.cache.layers[layer_index]) if fits else ())


def _probe_input(model: PagedModel) -> ModelInput:
    num_blocks = -(-PROBE_TOKENS // BLOCK_SIZE)
    request = probe_request([0] * PROBE_TOKENS, range(num_blocks))
    cache = KVCache(model.kv_shape(BLOCK_SIZE), num_blocks, model.device)
    return model.build_input(plan_of(request, 0, PROBE_TOKENS), cache)
