"""A whole decoder layer in few operators, for the shape that most architectures share.

Norm, projections, rotary embedding, attention, add, norm, gated MLP, add: at small batches a step on the CPU spends
more time between such operators than in them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from engine.fused import RMSNorm
from engine.paged_model import ModelInput
from kernels.score_rules import ScoreRules

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
        heads = self.qkv(self.input_norm(hidden)).view(-1, self._num_all, self._head_dim)
        attended = self._attend(heads, position_embeddings, model_input)
        hidden = self.output(attended.view(1, -1, self._num_heads * self._head_dim)).add_(hidden)
        gated = self._gate(self.gate_up(self.mlp_norm(hidden)))
        result: Tensor = self.down(gated).add_(hidden)
        return result

    def _attend(self, heads: Tensor, embeddings: Embeddings, model_input: ModelInput) -> Tensor:
        """Rotate `heads`, [num_tokens, num_all, head_dim], put K and V into the cache, and return the attention."""
        cos, sin = self._rotary.take(embeddings)
        num_rotated = self._num_heads + self._num_kv_heads
        plain, value = heads[:, :num_rotated], heads[:, num_rotated:]
        # Some definitions rotate in float32 (OLMo, Ernie 4.5), whatever the model's type.
        rotated = torch.addcmul(plain * cos, plain.roll(self._head_dim // 2, dims=-1), sin).to(heads.dtype)
        query, key = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
        return model_input.store_and_attend(self.layer_index, query, key, value, self._rules)

    def _gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        gated: Tensor = self.act(gate).mul_(up)
        return gated


def has_plain_parts(layer: Any) -> bool:
    """Whether a layer's norms and its activation are those that there are kernels for: RMSNorm and SiLU."""
    norms = (layer.input_layernorm, layer.post_attention_layernorm)
    return all(isinstance(norm, RMSNorm) for norm in norms) and _is_silu(layer.mlp.act_fn)


def _is_silu(activation: Any) -> bool:
    """Judge by what it does: in a layer's output, a similar one would pass for rounding."""
    probe = torch.linspace(-6, 6, 97)
    with torch.inference_mode():
        return torch.allclose(activation(probe), torch.nn.functional.silu(probe), rtol=1e-5, atol=1e-6)
