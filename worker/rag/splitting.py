"""Splitting a text into chunks by a model's tokens: at the ends of paragraphs and sentences where there are any.

A chunk begins with the last sentences of the one before, so that what stands across a border is found as well. All
chunks without what they repeat are the text, character for character.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from worker.errors import InvalidJob

MIN_CHUNK_TOKENS = 32
MAX_CHUNK_TOKENS = 8_192
PIECE_CHARACTERS = 1_000  # of the longest sentence that is kept whole; one giant line is many pieces
LEAST_FILL = 0.5  # of a chunk that ends with its last paragraph rather than with its last sentence

# The end of a line with the white space behind it, or of a sentence: what follows begins a piece.
# Possessive, and from the start of a run of stops only: a million of them take no longer than a million letters.
_BORDER = re.compile(
    r"\n\s*|(?<![.!?\u2026])[.!?\u2026]++[\"'\u201d\u2019)\]]*+\s+|[\u3002\uff01\uff1f]++[\u300d\u300f\u201d\u2019\uff09]*\s*"
)
_SPACE = re.compile(r"\s(?=\S)")

CountTokens = Callable[[Sequence[str]], list[int]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a text. Its tokens are counted piece by piece: the whole may have slightly fewer."""

    start: int  # characters before it in the text
    text: str
    num_tokens: int
    overlap_characters: int  # at its start, which the chunk before ends with
    overlap_tokens: int


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How long chunks are. Raises InvalidJob for lengths that cannot be."""

    chunk_tokens: int
    overlap_tokens: int

    def __post_init__(self) -> None:
        if not MIN_CHUNK_TOKENS <= self.chunk_tokens <= MAX_CHUNK_TOKENS:
            raise InvalidJob(
                "chunk_tokens", f"is {self.chunk_tokens}; {MIN_CHUNK_TOKENS} to {MAX_CHUNK_TOKENS} are possible"
            )
        if not 0 <= self.overlap_tokens <= self.chunk_tokens // 2:
            raise InvalidJob(
                "overlap_tokens",
                f"is {self.overlap_tokens}; 0 to {self.chunk_tokens // 2}, half of chunk_tokens, are possible",
            )


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    text: str
    num_tokens: int

    @property
    def ends_paragraph(self) -> bool:
        return self.text.rstrip(" \t").count("\n", len(self.text.rstrip())) > 1


def split_text(text: str, rule: SplitRule, count: CountTokens) -> list[Chunk]:
    """Return the chunks of a text, in order. `count` returns the tokens of each of several texts."""
    pieces = list(_pieces(text, rule.chunk_tokens, count))
    chunks: list[Chunk] = []
    first = end = 0  # pieces[first:end] are a chunk; those before `fresh` are in the one before as well
    while end < len(pieces):
        fresh = end
        first = _overlap_start(pieces, first, fresh, rule)
        end = _chunk_end(pieces, first, fresh, rule.chunk_tokens)
        chunks.append(_chunk(pieces, first, fresh, end))
    return chunks


def _overlap_start(pieces: Sequence[_Piece], earliest: int, fresh: int, rule: SplitRule) -> int:
    """Return the first of the pieces before `fresh` that are repeated; the first fresh one has to fit besides."""
    room = min(rule.overlap_tokens, rule.chunk_tokens - pieces[fresh].num_tokens)
    first = fresh
    while first > earliest + 1 and pieces[first - 1].num_tokens <= room:
        first -= 1
        room -= pieces[first].num_tokens
    return first


def _chunk_end(pieces: Sequence[_Piece], first: int, fresh: int, most_tokens: int) -> int:
    """Return the end of the chunk from `first`: at least one fresh piece, and as many as fit or end a paragraph."""
    total = sum(piece.num_tokens for piece in pieces[first:fresh])
    end = fresh
    paragraph_end = None
    while end < len(pieces) and (end == fresh or total + pieces[end].num_tokens <= most_tokens):
        total += pieces[end].num_tokens
        end += 1
        if pieces[end - 1].ends_paragraph and total >= LEAST_FILL * most_tokens:
            paragraph_end = end
    return end if end == len(pieces) or paragraph_end is None else paragraph_end


def _chunk(pieces: Sequence[_Piece], first: int, fresh: int, end: int) -> Chunk:
    return Chunk(
        start=pieces[first].start,
        text="".join(piece.text for piece in pieces[first:end]),
        num_tokens=sum(piece.num_tokens for piece in pieces[first:end]),
        overlap_characters=sum(len(piece.text) for piece in pieces[first:fresh]),
        overlap_tokens=sum(piece.num_tokens for piece in pieces[first:fresh]),
    )


def _pieces(text: str, most_tokens: int, count: CountTokens) -> Iterator[_Piece]:
    """Yield sentences, lines or parts of them, none above `most_tokens` (unless one character is)."""
    spans = list(_spans(text))
    texts = [text[start:end] for start, end in spans]
    for (start, end), piece, num_tokens in zip(spans, texts, count(texts), strict=True):
        if num_tokens <= most_tokens or end - start == 1:
            yield _Piece(start, piece, num_tokens)
            continue
        middle = _middle(piece)
        for offset, half in ((0, piece[:middle]), (middle, piece[middle:])):
            for part in _pieces(half, most_tokens, count):
                yield _Piece(start + offset + part.start, part.text, part.num_tokens)


def _middle(text: str) -> int:
    """Return where to cut a text in two: at the last white space before its middle, if that is not far."""
    half = len(text) // 2
    return max((found.end() for found in _SPACE.finditer(text, half // 2, half)), default=half)


def _spans(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for border in _BORDER.finditer(text):
        yield from _bounded(text, start, border.end())
        start = border.end()
    if start < len(text):
        yield from _bounded(text, start, len(text))


def _bounded(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the span in parts of at most PIECE_CHARACTERS, cut at white space where there is some in the last half."""
    while end - start > PIECE_CHARACTERS:
        limit = start + PIECE_CHARACTERS
        spaces = _SPACE.finditer(text, start + PIECE_CHARACTERS // 2, limit)
        cut = max((found.end() for found in spaces), default=limit)
        yield start, cut
        start = cut
    yield start, end
