"""What a model's layers attend with, seen by letting it run once: configurations name these things in many ways."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from engine.kv_layout import AttentionLayer

OBSERVING_NAME = "pagemill_observing"
SERVED_LAYERS = {"full_attention", "sliding_attention"}
GPT_NEO_TYPES = {"global": "full_attention", "local": "sliding_attention"}


class UnsupportedModel(Exception):
    """A model that the paged path would answer wrongly, with the reason. Refused at load, never served."""


class OptionsLost(UnsupportedModel):
    """A model whose layers do not hand the options of a step down to the attention function."""


@dataclass(slots=True)
class Observation:
    """What the layers called the attention function with, in one pass."""

    layers: dict[int, AttentionLayer] = field(default_factory=dict)
    _keys: dict[int, Tensor] = field(default_factory=dict)

    def add(self, index: int, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> None:
        """Note a layer's call. Raises UnsupportedModel."""
        if index in self.layers:
            raise UnsupportedModel(f"its layer {index} attends more than once")
        if value.shape[-1] > key.shape[-1]:
            raise UnsupportedModel(
                f"its layer {index} has values of {value.shape[-1]} elements on keys of {key.shape[-1]}; "
                "values may not be wider"
            )
        source = next((i for i, other in self._keys.items() if other.data_ptr() == key.data_ptr()), index)
        self.layers[index] = AttentionLayer(query.shape[1], key.shape[1], key.shape[3], window, source)
        self._keys[index] = key  # kept, so that no other layer's K comes to lie where it lies


def refuse_other_attention(module: Any, attention_mask: Tensor | None, options: dict[str, Any]) -> None:
    """Raise UnsupportedModel for a call of the attention function whose result would be another than asked for."""
    if options.get("position_bias") is not None:
        raise UnsupportedModel("its attention uses position_bias, which the paged attention does not have yet")
    if attention_mask is not None or not getattr(module, "is_causal", True):
        raise UnsupportedModel("its attention has a mask other than the causal one")


def observing_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    observation: Observation | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' registry that attends to nothing, and notes what it was called with."""
    refuse_other_attention(module, attention_mask, options)
    if observation is None:
        raise OptionsLost("its layers do not hand the options of a step down to the attention function")
    observation.add(module.layer_idx, query, key, value, sliding_window)
    return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


AttentionInterface.register(OBSERVING_NAME, observing_attention)


def refuse_other_layers(model: PreTrainedModel) -> None:
    """Raise UnsupportedModel for a model whose configuration names layers that are not served."""
    layer_types = set(_layer_types(model) or ["full_attention"])
    if not layer_types <= SERVED_LAYERS:
        served = " and ".join(sorted(SERVED_LAYERS))
        raise UnsupportedModel(f"its layers are {', '.join(sorted(layer_types))}; only {served} are served")


def layers_of(model: PreTrainedModel, observation: Observation) -> tuple[AttentionLayer, ...]:
    """Return the layers in order. Raises UnsupportedModel where one was not seen, or its window is not the configured.

    A window that reaches a layer in another way than the function's argument would hide nothing in a short self-test.
    """
    num_layers: int = model.config.get_text_config().num_hidden_layers
    missing = next((index for index in range(num_layers) if index not in observation.layers), None)
    if missing is not None:
        raise UnsupportedModel(f"its layer {missing} does not call the attention function")
    layers = tuple(observation.layers[index] for index in sorted(observation.layers))
    if len(layers) != num_layers:
        raise UnsupportedModel(f"it has {len(layers)} layers with attention; its configuration says {num_layers}")
    for index, (layer_type, layer) in enumerate(zip(_expected_types(model, num_layers), layers, strict=True)):
        if (layer_type == "sliding_attention") != (layer.window is not None):
            raise UnsupportedModel(f"its layer {index} is {layer_type}, but attends with a window of {layer.window}")
    return layers


def _layer_types(model: PreTrainedModel) -> Sequence[str] | None:
    config = model.config.get_text_config()
    if config.model_type == "gpt_neo":
        return [GPT_NEO_TYPES[name] for name in config.attention_layers]
    return getattr(config, "layer_types", None)


def _expected_types(model: PreTrainedModel, num_layers: int) -> Sequence[str]:
    config = model.config.get_text_config()
    slides = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    return _layer_types(model) or ["sliding_attention" if slides else "full_attention"] * num_layers


def observing_inputs(model: PreTrainedModel) -> dict[str, Any]:
    """Return the arguments of a pass of two tokens."""
    return {
        "input_ids": torch.zeros(1, 2, dtype=torch.int64, device=model.device),
        "position_ids": torch.arange(2, device=model.device).unsqueeze(0),
        "use_cache": False,
        "logits_to_keep": 1,
    }
