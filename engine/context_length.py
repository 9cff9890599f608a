"""How long sequences of a model may be, and LongRoPE's two sets of rotary frequencies (Ding et al. 2024).

LongRoPE models have frequencies for sequences within the context that they were first trained on, and others for longer
ones. A definition takes them by the longest sequence of a step: one long request would change what all others answer,
and what it stored itself when it was shorter. So a model has one set for all, and it is the first unless longer
sequences are asked for.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.attention_layers import UnsupportedModel

CONTEXT_NAMES = ("max_position_embeddings", "max_seq_len", "seq_length")  # the last two are MPT's and BLOOM's
LONGROPE = "longrope"


def max_model_len(config: PreTrainedConfig, *, is_long: bool = False) -> int:
    """Return the context limit in tokens, of LongRoPE that of the frequencies in use, the longer where `is_long`.

    Raises UnsupportedModel where the configuration has none.
    """
    longest = next((limit for name in CONTEXT_NAMES if (limit := getattr(config, name, None)) is not None), None)
    if longest is None:
        raise UnsupportedModel(f"its configuration names no context length (none of {', '.join(CONTEXT_NAMES)})")
    return min([int(longest), *([] if is_long else _original_lengths(config))])


def needs_long_frequencies(config: PreTrainedConfig, num_tokens: int | None) -> bool:
    """Whether sequences of `num_tokens` need a LongRoPE model's frequencies for long ones."""
    return num_tokens is not None and any(num_tokens > length for length in _original_lengths(config))


def use_long_frequencies(model: PreTrainedModel) -> None:
    """Let a LongRoPE model rotate by its frequencies for long sequences, whatever the length. In place."""
    for module in model.modules():
        types = getattr(module, "rope_type", None)
        if types == LONGROPE:
            _lengthen(module, None)
        elif isinstance(types, Mapping):
            for layer_type, rope_type in types.items():
                if rope_type == LONGROPE:
                    _lengthen(module, layer_type)


def _lengthen(embed: Any, layer_type: str | None) -> None:
    """Put the frequencies for long sequences in the place of both sets."""
    parameters, prefix = embed.config.rope_parameters, ""
    if layer_type is not None:
        parameters, prefix = parameters[layer_type], f"{layer_type}_"
    longer = parameters["original_max_position_embeddings"] + 1
    frequencies, _ = ROPE_INIT_FUNCTIONS[LONGROPE](embed.config, None, seq_len=longer, layer_type=layer_type)
    for name in ("inv_freq", "original_inv_freq"):
        setattr(embed, prefix + name, nn.Buffer(frequencies.clone(), persistent=False))


def _original_lengths(config: PreTrainedConfig) -> Iterator[int]:
    rope = getattr(config, "rope_parameters", None) or {}
    for of_layers in (rope, *rope.values()):  # one for all layers, or one for each type of layer
        if isinstance(of_layers, Mapping) and of_layers.get("rope_type") == LONGROPE:
            yield of_layers["original_max_position_embeddings"]
