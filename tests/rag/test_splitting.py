"""Splitting: nothing is lost, nothing is too long, and borders are where a reader would put them."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.errors import InvalidJob
from worker.rag.splitting import SplitRule, split_text

PARTS = ("word ", "An end. ", "\n\n", "\n", "x" * 40, "\u3002", "?!", " ", "\u00e9", "....")


def count(texts: Sequence[str]) -> list[int]:
    """Count four characters as a token."""
    return [-(-len(text) // 4) for text in texts]


@given(st.lists(st.sampled_from(PARTS), max_size=200).map("".join), st.integers(32, 80), st.integers(0, 16))
def test_chunks_without_what_they_repeat_are_the_text(text: str, chunk_tokens: int, overlap_tokens: int) -> None:
    rule = SplitRule(chunk_tokens, overlap_tokens)
    chunks = split_text(text, rule, count)
    assert "".join(chunk.text[chunk.overlap_characters :] for chunk in chunks) == text
    for chunk in chunks:
        assert text[chunk.start : chunk.start + len(chunk.text)] == chunk.text
        assert 0 < chunk.num_tokens <= chunk_tokens
        assert chunk.overlap_tokens <= overlap_tokens
        assert chunk.overlap_characters < len(chunk.text)


def test_chunks_end_with_paragraphs_and_sentences() -> None:
    paragraph = "One sentence here. Another sentence there.\n\n"
    chunks = split_text(paragraph * 10, SplitRule(32, 0), count)
    assert {chunk.text for chunk in chunks} == {paragraph * 2}
    sentence = "A sentence of some length that ends. "
    chunks = split_text(sentence * 20, SplitRule(32, 10), count)
    assert all(chunk.text == sentence * 3 for chunk in chunks[:-1])
    assert all(chunk.overlap_characters == len(sentence) for chunk in chunks[1:])


def test_one_giant_line_is_cut_at_white_space_and_one_giant_word_anywhere() -> None:
    chunks = split_text("word " * 20_000, SplitRule(100, 0), count)
    assert all(chunk.text.endswith("word ") for chunk in chunks)
    chunks = split_text("." * 200_000, SplitRule(100, 0), count)
    assert sum(len(chunk.text) for chunk in chunks) == 200_000


@pytest.mark.parametrize(
    ("chunk_tokens", "overlap_tokens", "field"),
    [(31, 0, "chunk"), (8_193, 0, "chunk"), (100, 51, "overlap"), (100, -1, "overlap")],
)
def test_lengths_that_cannot_be_are_refused(chunk_tokens: int, overlap_tokens: int, field: str) -> None:
    with pytest.raises(InvalidJob, match=rf"^{field}_tokens: is -?\d+; \d+ to \d+"):
        SplitRule(chunk_tokens, overlap_tokens)
