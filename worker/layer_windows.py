"""Which layers of a model see a window only, as its files say. No torch."""

from collections.abc import Mapping
from typing import Any

# Of configurations that name no layers' types: every so manieth layer sees all, in transformers' definitions.
FULL_LAYER_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2, "gpt-oss": 2, "olmo3": 4}
# A model with one of these has full layers of another width (Gemma 4): plans know one width, and take all to keep all.
_OTHER_WIDTHS = ("global_head_dim", "num_global_key_value_heads", "per_layer_config")

Windows = tuple[int | None, ...]


def windows_of_config(text: Mapping[str, Any], num_layers: int) -> Windows | None:
    """Return the tokens that each layer sees, from a transformers `config.json`; None where all see all."""
    window = text.get("sliding_window")
    slides = text.get("use_sliding_window", "max_window_layers" not in text)
    if not isinstance(window, int) or window < 1 or not slides or any(text.get(key) for key in _OTHER_WIDTHS):
        return None
    layer_types = text.get("layer_types")
    if layer_types is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
    every = text.get("sliding_window_pattern") or FULL_LAYER_EVERY.get(str(text.get("model_type")))
    if every is not None:
        return _with_full_layers(window, every, num_layers)
    first = text.get("max_window_layers", 0)
    return tuple(window if index >= first else None for index in range(num_layers))


def windows_of_gguf(architecture: str, values: Mapping[str, Any], num_layers: int) -> Windows | None:
    """Return the same from the fields of a GGUF file, without the architecture before their names."""
    window, every = values.get("attention.sliding_window"), FULL_LAYER_EVERY.get(architecture)
    return _with_full_layers(window, every, num_layers) if window and every else None


def _with_full_layers(window: int, every: int, num_layers: int) -> Windows:
    return tuple(None if (index + 1) % every == 0 else window for index in range(num_layers))
