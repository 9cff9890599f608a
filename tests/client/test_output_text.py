"""Pieces of an output, put together: each character once, whatever begins again or is missing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.client import JobEnd, JobNotDone
from worker.errors import TryLater
from worker.queue.access import TokenDelta
from worker.queue.live_output import OutputText
from worker.records import JobState


def done(text: str) -> JobEnd:
    return JobEnd("j", JobState.DONE, value={"text": text})


@settings(max_examples=60)
@given(
    text=st.text(max_size=20),
    places=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=10),
)
def test_any_pieces_and_the_end_give_the_output(text: str, places: list[tuple[int, int]]) -> None:
    output = OutputText("j")
    pieces = [TokenDelta(text[start:stop], position=min(start, len(text))) for start, stop in places]
    came = [output.take(piece) for piece in pieces]
    came.append(output.finish(done(text)))
    assert "".join(came) == text


def test_pieces_without_places_follow_each_other() -> None:
    output = OutputText("j")
    assert [output.take(TokenDelta("a")), output.take(TokenDelta("b"))] == ["a", "b"]


def test_another_answer_is_told() -> None:
    output = OutputText("j")
    output.take(TokenDelta("one", position=0))
    with pytest.raises(TryLater, match="job j began again, and its output is not the one of which 3 characters"):
        output.take(TokenDelta("two", position=0))
    with pytest.raises(TryLater, match="its result has all of it"):
        output.finish(done("two"))


def test_other_ends_are_errors_that_hold_the_end() -> None:
    end = JobEnd("j", JobState.FAILED, error="context_length: 9000 tokens, at most 8192")
    with pytest.raises(JobNotDone, match="job j is failed: context_length: 9000 tokens") as raised:
        OutputText("j").finish(end)
    assert raised.value.end == end
