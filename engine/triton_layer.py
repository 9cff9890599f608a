"""The fused decoder layer on a GPU, with Triton kernels between the matrix products."""

from torch import Tensor, nn

from engine.fused import RMSNorm
from engine.fused_layer import Embeddings, FusedLayer
from engine.paged_model import ModelInput
from kernels import ops
from kernels.native.attending import NativePlan


class TritonLayer(FusedLayer):
    """A layer with RMSNorm and SiLU."""

    def forward(
        self, hidden: Tensor, *, position_embeddings: Embeddings, model_input: ModelInput, **_: object
    ) -> Tensor:
        """hidden: [1, num_tokens, hidden_size]. Writes the tokens' K and V to the cache."""
        input_norm, mlp_norm = _plain(self.input_norm), _plain(self.mlp_norm)
        normed = ops.rms_norm(hidden, input_norm.weight, input_norm.eps)
        heads = self.qkv(normed).view(-1, self._num_all, self._head_dim)
        attended = self._attend(heads, position_embeddings, model_input).view(1, -1, self._num_heads * self._head_dim)
        normed, hidden = ops.add_rms_norm(self.output(attended), hidden, mlp_norm.weight, mlp_norm.eps)
        result: Tensor = self.down(self._gate(self.gate_up(normed))).add_(hidden)
        return result

    def _attend(self, heads: Tensor, embeddings: Embeddings, model_input: ModelInput) -> Tensor:
        (key_cache, value_cache), scales = model_input.cache.layer(self.layer_index)
        cos, sin = embeddings
        slots = model_input.slot_mapping(self.layer_index)
        ops.rotate_and_store(heads, self._num_heads, cos[0], sin[0], key_cache, value_cache, slots, scales)
        plan = model_input.attention.plan_for(self.layer_index, self._rules, self._num_heads, self._num_kv_heads)
        assert not isinstance(plan, NativePlan), "the C kernels are for a CPU"
        query = heads[:, : self._num_heads]
        return ops.paged_attention(query, key_cache, value_cache, plan, self._rules, scales)

    def _gate(self, gate_up: Tensor) -> Tensor:
        return ops.silu_mul(gate_up)


def _plain(norm: nn.Module) -> RMSNorm:
    assert isinstance(norm, RMSNorm), "only layers with plain norms are in Triton"
    return norm
