"""Replacing decoder layers as a whole, where the replacement answers as the layer does.

Whether a layer has the usual shape is judged by what it does: one that answers otherwise than its replacement (a norm
of the queries, a scaled residual, a partial rotation) is left as it is, and so is one whose answer depends on positions
in another way than by their rotary embeddings (Ministral 3 scales queries, from some position on).
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention_layers import UnsupportedModel
from engine.fused import Sibling
from engine.fused_layer import FusedLayer, Rotary, has_plain_parts
from engine.kv_cache import KVCache
from engine.native_layer import NativeLayer, NativeStack, fits_native
from engine.paged_model import ModelInput, PagedModel
from engine.probing import plan_of, probe_request
from engine.triton_layer import TritonLayer
from kernels import ops
from kernels.score_rules import ScoreRules

CHILDREN = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_CHILDREN = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP_CHILDREN = {"gate_proj", "up_proj", "down_proj", "act_fn"}
PROBE_TOKENS = 5
BLOCK_SIZE = 16
# Of the output's standard deviation, the root mean square of differences: rounding, and no more.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 0.005, torch.bfloat16: 0.04}


def fuse_layers(model: PagedModel) -> None:
    """Replace each decoder layer that its fused form equals, in place. After `fuse`."""
    decoder: Any = getattr(model.model, "model", None)
    layers, embed = getattr(decoder, "layers", None), getattr(decoder, "rotary_emb", None)
    if not isinstance(layers, nn.ModuleList) or embed is None or not _takes_positions_alone(embed) or model.is_hooked:
        return
    rotary = Rotary()
    for index, layer in enumerate[Any](layers):
        if _has_the_parts(layer):
            layers[index] = _replacement(model, layer, rotary, embed) or layer
    native = [layer for layer in layers if isinstance(layer, NativeLayer)]
    # Where all are replaced, what a definition tells each of its layers makes no difference to them.
    if len(native) == len(layers) and len({layer.shape for layer in native}) == len(model.kv_groups) == 1:
        decoder.layers = nn.ModuleList([NativeStack(native)])


def _takes_positions_alone(embed: nn.Module) -> bool:
    """Whether rotary embeddings are the same for all layers (MiMo's are asked for by the type of a layer)."""
    parameters = list(inspect.signature(embed.forward).parameters.values())
    return all(parameter.default is not inspect.Parameter.empty for parameter in parameters[2:])


def _replacement(model: PagedModel, layer: Any, rotary: Rotary, embed: Any) -> FusedLayer | None:
    """Return the fastest form that answers as the layer does; None where there is none."""
    index: int = layer.self_attn.layer_idx
    expected = _probe(model, layer, index, embed)
    if not expected.fits or not _ignores_positions(model, layer, index, embed, expected):
        return None
    forms = _forms(layer, model, model.layers[index].head_dim, expected.rules, rotary)
    return next((form for form in forms if _probe(model, form, index, embed).equals(expected)), None)


def _forms(layer: Any, model: PagedModel, head_dim: int, rules: ScoreRules, rotary: Rotary) -> Iterator[FusedLayer]:
    """Yield what may replace a layer, the fastest first."""
    if ops.uses_triton(model.device) and has_plain_parts(layer):
        yield TritonLayer(layer, head_dim, rules, rotary).eval()
    if model.native is not None and fits_native(layer, head_dim):
        yield NativeLayer(layer, head_dim, rules, rotary, model.native).eval()
    yield FusedLayer(layer, head_dim, rules, rotary).eval()


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


def _ignores_positions(model: PagedModel, layer: nn.Module, layer_index: int, embed: Any, expected: _Probed) -> bool:
    """Whether a layer answers alike, to the bit, when it is told other positions with the same rotary embeddings."""
    elsewhere = _probe(model, layer, layer_index, embed, distance=model.max_model_len - PROBE_TOKENS)
    return all(torch.equal(a, b) for a, b in zip(elsewhere.tensors, expected.tensors, strict=True))


def _probe(model: PagedModel, layer: nn.Module, layer_index: int, embed: Any, distance: int = 0) -> _Probed:
    """Run a layer on random input, through a cache of its own. Its position ids are `distance` farther than what its
    rotary embeddings are of."""
    generator = torch.Generator().manual_seed(0)
    size = model.model.config.get_text_config().hidden_size
    hidden = torch.randn(1, PROBE_TOKENS, size, generator=generator).to(model.device, model.dtype)
    inputs = _probe_input(model)
    with torch.inference_mode():
        embeddings = embed(hidden, inputs.position_ids)
        output = layer(
            hidden,
            attention_mask=None,
            position_ids=inputs.position_ids + distance,
            position_embeddings=embeddings,
            model_input=inputs,
        )
    rules = inputs.attention.last_rules
    if rules is None:
        raise UnsupportedModel(f"its layer {layer_index} does not call the attention function")
    fits = isinstance(output, Tensor) and embeddings[0].shape[-1] == model.layers[layer_index].head_dim
    return _Probed(rules, fits, (output, *inputs.cache.layers[layer_index]) if fits else ())


def _probe_input(model: PagedModel) -> ModelInput:
    num_blocks, num_groups = -(-PROBE_TOKENS // BLOCK_SIZE), len(model.kv_groups)
    request = probe_request([0] * PROBE_TOKENS, range(num_blocks), num_groups)
    cache = KVCache(model.kv_shape(BLOCK_SIZE), num_blocks * num_groups, model.device)
    return replace(model.build_input(plan_of(request, 0, PROBE_TOKENS), cache), keeps_all_rows=True)
