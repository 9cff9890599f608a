"""A tiny random Llama with a tokenizer of its own, a printable character a token: workers load it in half a second."""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

UNKNOWN, END = "<unk>", "<|end|>"
CONTEXT = 4096  # tokens
LETTERS = (10, *range(32, 127))  # newline and printable ASCII
BYTE_LEVEL_SHIFT = 256  # how byte-level tokenizers write what is not printable: newline and space here


def make_tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """Write the model into a folder and return it. Its outputs are noise, but greedy ones are always the same noise."""
    transformers.utils.logging.disable_progress_bar()
    tokenizer = _tokenizer()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, eos_token=END, model_max_length=CONTEXT
    ).save_pretrained(folder)
    _model(tokenizer.get_vocab_size(), seed).save_pretrained(folder)
    return folder


def _tokenizer() -> Tokenizer:
    letters = [chr(code if code > 32 else code + BYTE_LEVEL_SHIFT) for code in LETTERS]
    vocabulary = {letter: number for number, letter in enumerate((UNKNOWN, END, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _model(vocab_size: int, seed: int) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        is_scale = parameter.ndim == 1 and name.endswith("weight")
        nn.init.normal_(parameter, mean=float(is_scale), std=0.3, generator=generator)
    return model
