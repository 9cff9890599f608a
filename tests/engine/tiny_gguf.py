"""A tiny random Llama as a GGUF file, tokenizer included."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

VOCAB_SIZE = 96
HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 32, 48, 2, 4, 2, 8
TOKENS = ["<|end|>", *map(chr, range(33, 33 + VOCAB_SIZE - 2)), "ab"]
CONTROL, NORMAL = 3, 1  # GGUF's token types


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight by its name in GGUF."""
    weights: dict[str, tuple[int, ...]] = {
        "token_embd": (VOCAB_SIZE, HIDDEN),
        "output_norm": (HIDDEN,),
        "output": (VOCAB_SIZE, HIDDEN),
    }
    for layer in range(LAYERS):
        weights |= {
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_gate": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_up": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, FEED_FORWARD),
        }
    return weights


def write_gguf(path: Path, *, without: str | None = None, seed: int = 0) -> None:
    """Write the file, leaving out one weight by its name in GGUF if asked."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([CONTROL] + [NORMAL] * (VOCAB_SIZE - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    generator = np.random.default_rng(seed)
    for name, shape in shapes().items():
        if name != without:
            writer.add_tensor(f"{name}.weight", generator.normal(len(shape) == 1, 0.3, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
