"""Which layers see a window, as files say: the same as transformers makes of them."""

from collections.abc import Callable
from typing import Any

import pytest
import transformers
from transformers import PreTrainedConfig

from tests.engine.tiny_configs import SIZES, WINDOW
from worker.layer_windows import windows_of_config, windows_of_gguf

LAYERS: dict[str, Any] = {**SIZES, "num_hidden_layers": 12}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "gemma2": lambda: transformers.Gemma2Config(**LAYERS, sliding_window=WINDOW),
    "gemma3": lambda: transformers.Gemma3TextConfig(**LAYERS, sliding_window=WINDOW),
    "gpt_oss": lambda: transformers.GptOssConfig(**LAYERS, sliding_window=WINDOW),
    "cohere2": lambda: transformers.Cohere2Config(**LAYERS, sliding_window=WINDOW),
    "olmo3": lambda: transformers.Olmo3Config(**LAYERS, sliding_window=WINDOW),
    "mistral": lambda: transformers.MistralConfig(**LAYERS, sliding_window=WINDOW),
    "llama": lambda: transformers.LlamaConfig(**LAYERS),
    "qwen2": lambda: transformers.Qwen2Config(**LAYERS, sliding_window=WINDOW),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **LAYERS, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=5
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("is_old", [False, True])
def test_windows_are_those_of_transformers(name: str, is_old: bool) -> None:
    """Files of old versions name no types of layers."""
    config = CONFIGS[name]()
    types = getattr(config, "layer_types", None)
    if types is None:
        types = ["sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"] * 12
    written = config.to_dict()
    if is_old:
        written.pop("layer_types", None)
    expected = tuple(WINDOW if kind == "sliding_attention" else None for kind in types)
    assert windows_of_config(written, 12) == (expected if any(expected) else None)


def test_full_layers_of_another_width_are_no_groups() -> None:
    config = transformers.Gemma4TextConfig(**LAYERS, sliding_window=WINDOW)
    assert "sliding_attention" in config.to_dict()["layer_types"]
    assert windows_of_config(config.to_dict(), 12) is None


def test_windows_of_gguf_files() -> None:
    values = {"attention.sliding_window": 512}
    assert windows_of_gguf("gemma3", values, 7) == (512, 512, 512, 512, 512, None, 512)
    assert windows_of_gguf("phi3", values, 7) is None
    assert windows_of_gguf("gemma3", {}, 7) is None
