"""Configurations of tiny models: the architectures that are served, and some that are refused."""

from collections.abc import Callable
from typing import Any

import transformers
from transformers import PreTrainedConfig

VOCAB_SIZE = 96
CONTEXT = 128
WINDOW = 16
ENDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    **ENDS,
}
GPT_SIZES: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
OLD_SIZES: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2}
FALCON: dict[str, Any] = {**OLD_SIZES, **ENDS, "num_attention_heads": 4, "tie_word_embeddings": False}
MOE: dict[str, Any] = {**SIZES, "num_experts": 4, "num_experts_per_tok": 2}
LOCAL_MOE: dict[str, Any] = {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}
MIXED: dict[str, Any] = {
    **SIZES,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
LATENT: dict[str, Any] = {  # keys of 12 elements, values of 8
    **SIZES,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
DEEPSEEK_MOE: dict[str, Any] = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
SHARED_KV: dict[str, Any] = {  # the last two of four layers read K and V of the first two
    **SIZES,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
}
WIDE_FULL_LAYERS: dict[str, Any] = {"global_head_dim": 16, "num_global_key_value_heads": 1}
LONGROPE: dict[str, Any] = {
    "original_max_position_embeddings": 32,
    "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0, 4.0, 5.0, 6.0]},
}
VISION: dict[str, Any] = {  # an encoder of images that nobody shows any
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 32,
}
MROPE: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
IMAGE_TOKENS: dict[str, Any] = {  # of no text
    name: VOCAB_SIZE + place
    for place, name in enumerate(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"))
}

# Those that people name: each tried in every way.
SERVED: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "llama-tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama3-rope": lambda: transformers.LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=16),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(**MOE, moe_intermediate_size=24),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=None),
    "mistral-window": lambda: transformers.MistralConfig(**SIZES, sliding_window=WINDOW),
    "ministral3": lambda: transformers.Ministral3Config(**SIZES, head_dim=8),
    "ministral3-scaled": lambda: transformers.Ministral3Config(  # queries behind the original context are scaled
        **SIZES,
        head_dim=8,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 8,
            "llama_4_scaling_beta": 0.5,
        },
    ),
    "granite": lambda: transformers.GraniteConfig(
        **SIZES, attention_multiplier=0.3, logits_scaling=2.0, residual_multiplier=0.5, embedding_multiplier=3.0
    ),
    "olmo2": lambda: transformers.Olmo2Config(**SIZES),
    "phi": lambda: transformers.PhiConfig(**SIZES),
    "phi3": lambda: transformers.Phi3Config(**(SIZES | {"partial_rotary_factor": 0.5})),
    "gemma": lambda: transformers.GemmaConfig(**SIZES, head_dim=8),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8),
    "gemma2-softcap": lambda: transformers.Gemma2Config(
        **SIZES, head_dim=8, layer_types=["full_attention"] * 2, attn_logit_softcapping=2.0
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(**MIXED, head_dim=8),
    "gemma4": lambda: transformers.Gemma4TextConfig(**SHARED_KV, **WIDE_FULL_LAYERS),
    "gemma4-key-is-value": lambda: transformers.Gemma4TextConfig(
        **MIXED,
        **WIDE_FULL_LAYERS,
        head_dim=8,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB_SIZE,
    ),
    "gpt-oss": lambda: transformers.GptOssConfig(**LOCAL_MOE, head_dim=8, sliding_window=WINDOW),
    "cohere2": lambda: transformers.Cohere2Config(**SIZES, sliding_window=WINDOW),
    "starcoder2": lambda: transformers.Starcoder2Config(**SIZES, sliding_window=WINDOW),
    "glm4": lambda: transformers.Glm4Config(**SIZES, head_dim=8),
    "smollm3": lambda: transformers.SmolLM3Config(**SIZES, no_rope_layers=[1, 0]),
    "gpt2": lambda: transformers.GPT2Config(**GPT_SIZES, **ENDS),
    "gptj": lambda: transformers.GPTJConfig(**GPT_SIZES, **ENDS, rotary_dim=4),
    "gpt-neo": lambda: transformers.GPTNeoConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=WINDOW,
        max_position_embeddings=CONTEXT,
        **ENDS,
    ),
    "gpt-neox": lambda: transformers.GPTNeoXConfig(
        **OLD_SIZES, num_attention_heads=4, intermediate_size=48, max_position_embeddings=CONTEXT
    ),
    "opt": lambda: transformers.OPTConfig(
        **OLD_SIZES, ffn_dim=48, num_attention_heads=4, word_embed_proj_dim=32, max_position_embeddings=CONTEXT
    ),
    "falcon-7b": lambda: transformers.FalconConfig(**FALCON, alibi=False, bias=False),
    "falcon-new-decoder": lambda: transformers.FalconConfig(
        **FALCON, alibi=False, bias=True, num_kv_heads=2, new_decoder_architecture=True
    ),
    "falcon-alibi": lambda: transformers.FalconConfig(
        **FALCON, alibi=True, bias=True, multi_query=False, parallel_attn=False
    ),
    "mpt": lambda: transformers.MptConfig(
        vocab_size=VOCAB_SIZE,
        d_model=48,
        n_layers=2,
        n_heads=6,
        max_seq_len=CONTEXT,
        attn_config={"clip_qkv": 2.0, "softmax_scale": 0.3},
    ),
    "bloom": lambda: transformers.BloomConfig(**(OLD_SIZES | {"hidden_size": 48, "seq_length": CONTEXT}), n_head=6),
    "deepseek-v3": lambda: transformers.DeepseekV3Config(**LATENT, **DEEPSEEK_MOE),
}

# Those that come with the same mechanism: each tried in one run with everything at once.
ALSO_SERVED: dict[str, Callable[[], PreTrainedConfig]] = {
    "afmoe": lambda: transformers.AfmoeConfig(
        **MOE, head_dim=8, sliding_window=WINDOW, moe_intermediate_size=24, global_attn_every_n_layers=2
    ),
    "apertus": lambda: transformers.ApertusConfig(**SIZES),
    "arcee": lambda: transformers.ArceeConfig(**SIZES),
    "biogpt": lambda: transformers.BioGptConfig(**(SIZES | {"hidden_size": 48})),
    "bitnet": lambda: transformers.BitNetConfig(**SIZES),
    "codegen": lambda: transformers.CodeGenConfig(**GPT_SIZES, **ENDS, rotary_dim=4),
    "cohere": lambda: transformers.CohereConfig(**SIZES),
    "deepseek-v2": lambda: transformers.DeepseekV2Config(**(LATENT | {"q_lora_rank": None}), **DEEPSEEK_MOE),
    "dots1": lambda: transformers.Dots1Config(
        **(SIZES | DEEPSEEK_MOE | {"n_group": 1, "head_dim": 8}), n_shared_experts=1
    ),
    "ernie4_5": lambda: transformers.Ernie4_5Config(**SIZES, head_dim=8),
    "exaone4": lambda: transformers.Exaone4Config(**MIXED),
    "flex-olmo": lambda: transformers.FlexOlmoConfig(**MOE),
    "gemma3n": lambda: transformers.Gemma3nTextConfig(
        **SHARED_KV, laurel_rank=4, activation_sparsity_pattern=[0.0] * 4
    ),
    "glm": lambda: transformers.GlmConfig(**SIZES, head_dim=8),
    "glm4-moe": lambda: transformers.Glm4MoeConfig(
        **(SIZES | DEEPSEEK_MOE | {"n_group": 1, "head_dim": 8}), n_shared_experts=1
    ),
    "glm4-moe-lite": lambda: transformers.Glm4MoeLiteConfig(
        **(LATENT | DEEPSEEK_MOE | {"n_group": 1}), n_shared_experts=1, mlp_layer_types=["dense", "sparse"]
    ),
    "gpt-bigcode": lambda: transformers.GPTBigCodeConfig(**GPT_SIZES, **ENDS),
    "granite-moe": lambda: transformers.GraniteMoeConfig(**LOCAL_MOE),
    "helium": lambda: transformers.HeliumConfig(**SIZES, head_dim=8),
    "hunyuan-dense": lambda: transformers.HunYuanDenseV1Config(**SIZES, head_dim=8),
    "jetmoe": lambda: transformers.JetMoeConfig(
        **{name: size for name, size in LOCAL_MOE.items() if name != "num_attention_heads"}, kv_channels=8
    ),
    "longcat-flash": lambda: transformers.LongcatFlashConfig(
        **LATENT,
        num_layers=2,
        head_dim=4,
        ffn_hidden_size=48,
        expert_ffn_hidden_size=24,
        n_routed_experts=4,
        moe_topk=2,
        zero_expert_num=1,
    ),
    "mimo-v2-flash": lambda: transformers.MiMoV2FlashConfig(  # keys of 12 elements, values of 8
        **(MIXED | DEEPSEEK_MOE | {"n_group": 1, "head_dim": 12, "v_head_dim": 8})
    ),
    "minicpm3": lambda: transformers.MiniCPM3Config(**LATENT),
    "minimax-m2": lambda: transformers.MiniMaxM2Config(**LOCAL_MOE, head_dim=8),
    "ministral": lambda: transformers.MinistralConfig(**SIZES, head_dim=8, sliding_window=WINDOW),
    "mixtral": lambda: transformers.MixtralConfig(**LOCAL_MOE, sliding_window=None),
    "nanochat": lambda: transformers.NanoChatConfig(**SIZES),
    "olmo": lambda: transformers.OlmoConfig(**SIZES),
    "olmo3": lambda: transformers.Olmo3Config(**MIXED),
    "olmoe": lambda: transformers.OlmoeConfig(**MOE),
    "persimmon": lambda: transformers.PersimmonConfig(**SIZES),
    "phimoe": lambda: transformers.PhimoeConfig(**LOCAL_MOE, sliding_window=None),
    "qwen2-moe": lambda: transformers.Qwen2MoeConfig(
        **MOE, moe_intermediate_size=24, shared_expert_intermediate_size=24
    ),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "seed-oss": lambda: transformers.SeedOssConfig(**SIZES, head_dim=8),
    "stablelm": lambda: transformers.StableLmConfig(**SIZES),
    "nemotron": lambda: transformers.NemotronConfig(**SIZES),
    "vaultgemma": lambda: transformers.VaultGemmaConfig(
        **SIZES, head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8
    ),
    "gemma3-with-images": lambda: transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**MIXED, head_dim=8).to_dict(),
        vision_config={**VISION, "vision_use_head": False},
        mm_tokens_per_image=4,
        image_token_index=VOCAB_SIZE,
        **ENDS,
    ),
    "llava": lambda: transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**SIZES).to_dict(),
        vision_config={**VISION, "model_type": "clip_vision_model"},
        image_token_index=VOCAB_SIZE,
    ),
    "mistral3-with-ministral3": lambda: transformers.Mistral3Config(
        text_config=transformers.Ministral3Config(**SIZES, head_dim=8).to_dict(),
        vision_config={**VISION, "model_type": "pixtral"},
        image_token_index=VOCAB_SIZE,
    ),
    "qwen2.5-vl": lambda: transformers.Qwen2_5_VLConfig(
        text_config={**SIZES, **MROPE}, vision_config=QWEN_VISION, **IMAGE_TOKENS
    ),
    "qwen3-vl": lambda: transformers.Qwen3VLConfig(
        text_config={**SIZES, **MROPE, "head_dim": 8},
        vision_config={**QWEN_VISION, "deepstack_visual_indexes": [0]},
        **IMAGE_TOKENS,
    ),
}

# Each would be answered wrongly, and the reason it is refused with.
REFUSED: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "qwen3-next": (
        lambda: transformers.Qwen3NextConfig(
            **MOE,
            head_dim=8,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=24,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            layer_types=["linear_attention", "full_attention"],
        ),
        "its layers are full_attention, linear_attention; only full_attention and sliding_attention are served",
    ),
    "lfm2": (
        lambda: transformers.Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]),
        "its layers are conv, full_attention; only full_attention and sliding_attention are served",
    ),
    "falcon-h1": (
        lambda: transformers.FalconH1Config(
            **SIZES, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_state=8, mamba_d_head=8, mamba_n_groups=1
        ),
        "its layers are hybrid; only full_attention and sliding_attention are served",
    ),
    "mamba": (
        lambda: transformers.MambaConfig(**OLD_SIZES, **ENDS),
        "its layers are linear_attention; only full_attention and sliding_attention are served",
    ),
    "llama4": (
        lambda: transformers.Llama4TextConfig(**LOCAL_MOE, head_dim=8, intermediate_size_mlp=48),
        "its layers are chunked_attention; only full_attention and sliding_attention are served",
    ),
    "rwkv": (
        lambda: transformers.RwkvConfig(
            vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32, context_length=CONTEXT
        ),
        "its layer 0 does not call the attention function",
    ),
    "bloom-without-context": (
        lambda: transformers.BloomConfig(**OLD_SIZES, n_head=4),
        "its configuration names no context length",
    ),
    "diffllama": (lambda: transformers.DiffLlamaConfig(**SIZES), "its layer 0 attends more than once"),
    "bert": (
        lambda: transformers.BertConfig(**OLD_SIZES, num_attention_heads=4, intermediate_size=48),
        "its attention has a mask other than the causal one",
    ),
}
