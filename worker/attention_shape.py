"""What a model's layers attend with, as its files say: the engine sees it when the model runs (`engine.paged_model`).

No torch, and no transformers: each architecture's names for things, and what its definition makes of them, are here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.kv_layout import AttentionLayer

Text = Mapping[str, Any]  # a transformers `config.json`, or the part of it that is about text

# What older architectures call the fields that the others share.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "seq_length"),
    "sliding_window": ("window_size",),
}
# What transformers takes for fields that published files leave out; a test compares.
DEFAULTS: dict[str, dict[str, int]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
    },
    "gemma3n_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "sliding_window": 512,
        "num_kv_shared_layers": 15,
        "vocab_size": 262_400,
        "max_position_embeddings": 32_768,
    },
    "gemma4_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 512,
        "vocab_size": 262_144,
        "max_position_embeddings": 131_072,
    },
    "mimo_v2_flash": {"num_key_value_heads": 4, "head_dim": 192, "sliding_window": 129},
    "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "max_position_embeddings": 131_072},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8},
    "qwen3": {"head_dim": 128},
}
GEMMA4_FULL_HEAD_DIM = 512
# Of configurations that name no layers' types: every so manieth layer sees all, in transformers' definitions.
FULL_LAYER_EVERY = {
    "gemma2": 2,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gemma4_text": 6,
    "cohere2": 4,
    "gpt_oss": 2,
    "olmo3": 4,
}
GGUF_TYPES = {"gemma3": "gemma3_text", "gemma4": "gemma4_text", "gpt-oss": "gpt_oss"}  # by architecture of the file
GGUF_FIELDS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "max_position_embeddings": "context_length",
}
WITHOUT_KV_HEADS = frozenset({"biogpt", "persimmon"})  # whatever their configurations say
SLIDING = frozenset({"sliding_attention", "local"})  # the second is GPT-Neo's


def field(text: Text, name: str) -> Any:
    """Return a field by the name that most architectures have for it, or what its model is without it."""
    if name == "num_hidden_layers" and text.get("model_type") == "longcat_flash" and text.get("num_layers"):
        return 2 * text["num_layers"]  # each attends twice
    for spelling in (name, *OTHER_NAMES.get(name, ())):
        if text.get(spelling) is not None:
            return text[spelling]
    return DEFAULTS.get(str(text.get("model_type")), {}).get(name)


def context_of(text: Text) -> int | None:
    """Return a model's context limit in tokens; None where it is not told. LongRoPE's is the original one."""
    longest: int | None = field(text, "max_position_embeddings")
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    for of_layers in (rope, *rope.values()):  # one for all layers, or one for each type of layer
        if isinstance(of_layers, Mapping) and of_layers.get("rope_type", of_layers.get("type")) in ("longrope", "su"):
            original = of_layers.get("original_max_position_embeddings", text.get("original_max_position_embeddings"))
            longest = min((limit for limit in (longest, original) if isinstance(limit, int)), default=None)
    return longest


def layers_of_config(text: Text, num_layers: int, num_heads: int, hidden_size: int) -> tuple[AttentionLayer, ...]:
    """Return what each layer attends with. Numbers that make no sense are not refused here."""
    windows, overrides = windows_of(text, num_layers), _overrides(text, num_layers)
    num_kv_heads, head_dim = _kv_heads(text, num_heads), _head_dim(text, hidden_size, num_heads)
    sources = _sources(text, num_layers, windows)
    return tuple(
        AttentionLayer(
            num_heads=num_heads,
            num_kv_heads=overrides[index].get("num_key_value_heads", num_kv_heads),
            head_dim=overrides[index].get("head_dim", head_dim),
            window=windows[index],
            source=sources[index],
        )
        for index in range(num_layers)
    )


def config_of_gguf(fields: Text) -> dict[str, Any]:
    """Return what a `config.json` would say, from the fields of a GGUF file."""
    architecture = str(fields.get("general.architecture"))
    values = {name: fields.get(f"{architecture}.{key}") for name, key in GGUF_FIELDS.items()}
    config = {"model_type": GGUF_TYPES.get(architecture, architecture)} | {
        name: value for name, value in values.items() if value is not None
    }
    # Of Gemma 4 transformers reads the width of full layers, and takes its own for the others.
    if config["model_type"] == "gemma4_text":
        config["global_head_dim"] = config.pop("head_dim", None)
    if config["model_type"] not in FULL_LAYER_EVERY:
        config.pop("sliding_window", None)
    return config


def windows_of(text: Text, num_layers: int) -> Sequence[int | None]:
    """Return the tokens that each layer sees; None of one that sees all."""
    window = field(text, "sliding_window")
    slides = text.get("use_sliding_window", "max_window_layers" not in text)
    if not isinstance(window, int) or window < 1 or not slides:
        return [None] * num_layers
    types = text.get("layer_types") or text.get("attention_layers")
    if types is not None and len(types) == num_layers:
        return [window if kind in SLIDING else None for kind in types]
    every = text.get("sliding_window_pattern")
    if not isinstance(every, int):
        every = FULL_LAYER_EVERY.get(str(text.get("model_type")))
    if every is not None:
        return [None if (index + 1) % every == 0 else window for index in range(num_layers)]
    first = text.get("max_window_layers", 0)
    return [window if index >= first else None for index in range(num_layers)]


def _kv_heads(text: Text, num_heads: int) -> int:
    model_type = text.get("model_type")
    if model_type == "falcon":
        if not text.get("new_decoder_architecture"):
            return 1 if text.get("multi_query", True) else num_heads
        return text.get("num_kv_heads") or num_heads
    if model_type == "gpt_bigcode":
        return 1 if text.get("multi_query", True) else num_heads
    # Latent attention is expanded to all heads; JetMoe repeats K and V for each expert of its attention.
    if model_type in WITHOUT_KV_HEADS or text.get("kv_lora_rank") or text.get("kv_channels"):
        return num_heads
    return field(text, "num_key_value_heads") or num_heads


def _head_dim(text: Text, hidden_size: int, num_heads: int) -> int:
    if text.get("kv_lora_rank"):
        parts = text.get("qk_nope_head_dim"), text.get("qk_rope_head_dim")
        return sum(part for part in parts if isinstance(part, int))
    return text.get("kv_channels") or field(text, "head_dim") or hidden_size // num_heads


def _overrides(text: Text, num_layers: int) -> list[Mapping[str, int]]:
    """Return the fields that single layers have another value of."""
    by_layer = text.get("per_layer_config")
    if isinstance(by_layer, Mapping):
        named = {int(index): fields for index, fields in by_layer.items()}  # "05", where there are more than ten
        return [named.get(index, {}) for index in range(num_layers)]
    if text.get("model_type") == "mimo_v2_flash":  # its sliding layers have twice the KV heads
        twice = {"num_key_value_heads": 2 * field(text, "num_key_value_heads")}
        return [{} if window is None else twice for window in windows_of(text, num_layers)]
    if text.get("model_type") != "gemma4_text":
        return [{}] * num_layers
    full = {"head_dim": text.get("global_head_dim") or GEMMA4_FULL_HEAD_DIM}
    if text.get("attention_k_eq_v") and text.get("num_global_key_value_heads"):
        full["num_key_value_heads"] = text["num_global_key_value_heads"]
    return [full if window is None else {} for window in windows_of(text, num_layers)]


def _sources(text: Text, num_layers: int, windows: Sequence[int | None]) -> Sequence[int]:
    """Return the layer whose K and V each reads: the last that has its own and sees as far, where they are shared."""
    shared = field(text, "num_kv_shared_layers")
    first = num_layers - (shared if isinstance(shared, int) else 0)
    if not 0 < first < num_layers:
        return range(num_layers)
    last = {window: index for index, window in enumerate(windows[:first])}
    return [index if index < first else last.get(window, index) for index, window in enumerate(windows)]
