"""Pieces of an output, put together: each character once, whatever begins again or is missing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.client import JobEnd, JobNotDone
from worker.errors import TryLater
from worker.queue.access import TokenDelta
from worker.queue.live_output import OutputPiece, OutputTexts
from worker.records import JobState


def done(text: str) -> JobEnd:
    return JobEnd("j", JobState.DONE, value={"text": text, "finish_reason": "stop"})


@settings(max_examples=60)
@given(
    text=st.text(max_size=20),
    places=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=10),
)
def test_any_pieces_and_the_end_give_the_output(text: str, places: list[tuple[int, int]]) -> None:
    output = OutputTexts("j")
    pieces = [TokenDelta(text[start:stop], position=min(start, len(text))) for start, stop in places]
    came = [found for piece in pieces for found in output.take(piece)]
    came.extend(output.finish(done(text)))
    assert "".join(piece.text for piece in came) == text
    assert [(bool(piece.text), piece.finish_reason) for piece in came if piece.finish_reason] in (
        [(True, "stop")],
        [(False, "stop")],
    )
    assert came[-1].finish_reason == "stop"
    assert all(piece.text for piece in came[:-1])


def test_outputs_are_put_together_apart() -> None:
    outputs = OutputTexts("j")
    deltas = [TokenDelta("a", position=0), TokenDelta("x", position=0, index=1), TokenDelta("b", position=1)]
    assert [list(outputs.take(delta)) for delta in deltas] == [
        [OutputPiece(0, "a")],
        [OutputPiece(1, "x")],
        [OutputPiece(0, "b")],
    ]
    choices = [{"text": "abc"}, {"text": "xyz"}, {"text": "late"}]
    end = JobEnd("j", JobState.DONE, value={"text": "abc", "choices": choices})
    assert list(outputs.finish(end)) == [OutputPiece(0, "c"), OutputPiece(1, "yz"), OutputPiece(2, "late")]


def test_an_output_ends_once() -> None:
    outputs = OutputTexts("j")
    ending = TokenDelta("ab", position=0, finish_reason="length")
    assert list(outputs.take(ending)) == [OutputPiece(0, "ab", "length")]
    again = [ending, TokenDelta("a", position=0), TokenDelta("b", position=1)]  # the job began again
    assert [list(outputs.take(delta)) for delta in again] == [[], [], []]
    with pytest.raises(TryLater, match="began again"):
        list(outputs.take(TokenDelta("c", position=2)))
    with pytest.raises(TryLater, match="began again"):
        list(outputs.finish(JobEnd("j", JobState.DONE, value={"text": "ab", "finish_reason": "stop"})))
    whole = {
        "text": "ab",
        "choices": [{"text": "ab", "finish_reason": "length"}, {"text": "", "finish_reason": "stop"}],
    }
    assert list(outputs.finish(JobEnd("j", JobState.DONE, value=whole))) == [OutputPiece(1, "", "stop")]


def test_pieces_without_places_follow_each_other() -> None:
    output = OutputTexts("j")
    assert [piece.text for text in "ab" for piece in output.take(TokenDelta(text))] == ["a", "b"]


def test_another_answer_is_told() -> None:
    output = OutputTexts("j")
    list(output.take(TokenDelta("one", position=0)))
    with pytest.raises(TryLater, match="job j began again, and its output is not the one of which 3 characters"):
        list(output.take(TokenDelta("two", position=0)))
    with pytest.raises(TryLater, match="its result has all of it"):
        list(output.finish(done("two")))


def test_other_ends_are_errors_that_hold_the_end() -> None:
    end = JobEnd("j", JobState.FAILED, error="context_length: 9000 tokens, at most 8192")
    with pytest.raises(JobNotDone, match="job j is failed: context_length: 9000 tokens") as raised:
        list(OutputTexts("j").finish(end))
    assert raised.value.end == end
