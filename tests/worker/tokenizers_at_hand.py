"""Tokenizers of each kind, trained on the spot on a few lines."""

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LINES = (
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "  Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "def f(x):\n    return {'a': [1, 2, 3]}  # ok",
    "こんにちは世界。今日は良い天気です。",
    "emoji 🙂🙃👩‍👩‍👧 and flags 🇩🇪 and e\u0301",
)
SPECIAL = ("<s>", "</s>", "<unk>")


def _trained(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("naïve ✓", normalized=False)])
    return tokenizer


def byte_level() -> Tokenizer:
    """GPT-2's kind: every byte is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(tokenizer, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))


def byte_fallback(*, with_metaspace: bool = False) -> Tokenizer:
    """Llama 2's and Gemma's kind: words with a mark for their space, and bytes for what the vocabulary lacks."""
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False, max_piece_length=6
    )
    small = Tokenizer(models.Unigram())
    small.pre_tokenizer = pre_tokenizers.Metaspace()
    small.train_from_iterator([*LINES[:3], "� ▁ ▁▁ 🙂"], trainer)
    pieces = [(piece, -10.0) for piece in small.get_vocab() if piece not in SPECIAL]
    data = [("<unk>", 0.0), *((f"<0x{value:02X}>", -20.0) for value in range(256)), *pieces]
    known = {piece for piece, _ in data}
    data += [(piece, -12.0) for piece in ("▁", "▁▁", "�", "▁�") if piece not in known]
    tokenizer = Tokenizer(models.Unigram(data, unk_id=0, byte_fallback=True))
    if with_metaspace:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT's kind: words, and their continuations with ##."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False)
    return _trained(tokenizer, trainer)


def suffixed() -> Tokenizer:
    """GPT-1's kind: a mark at the end of each word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    return _trained(tokenizer, trainer)


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "byte-fallback": byte_fallback,
    "byte-fallback-metaspace": lambda: byte_fallback(with_metaspace=True),
    "word-piece": word_piece,
    "suffixed": suffixed,
}
