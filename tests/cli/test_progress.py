"""Progress of long work: how fast it goes of late, and how long it will take."""

import sys

import pytest

from worker.cli.progress import CLEAR_LINE, TimedProgress, format_span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (-3, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_spans_are_told_as_people_say_them(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


def test_without_a_terminal_a_line_comes_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    progress = TimedProgress("requests", lambda: now)
    progress.draw(0, 0, 1000)
    now += 5
    progress.draw(25, 1, 1000)
    assert capsys.readouterr().err == ""
    now += 5
    progress.draw(50, 1, 1000)
    assert capsys.readouterr().err == "50/1,000 requests, 1 failed, 5/s, 3 min 10 s left\n"
    now += 35  # what was before has no part in the rate any more
    progress.draw(50, 1, 1000)
    assert capsys.readouterr().err == "50/1,000 requests, 1 failed\n"
    now += 10
    progress.draw(1000, 1, 1000)
    assert capsys.readouterr().err == "1,000/1,000 requests, 1 failed, 95/s\n"


def test_a_terminal_has_a_bar_that_is_written_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    now = 100.0
    progress = TimedProgress("requests", lambda: now)
    progress.draw(0, 0, 1000)
    now += 2
    progress.draw(100, 1, 1000)
    progress.clear()
    empty, begun, cleared = capsys.readouterr().err.split(CLEAR_LINE)[1:]
    assert empty == f"[{'.' * 30}] 0/1,000 requests"
    assert begun == f"[###{'.' * 27}] 100/1,000 requests, 1 failed, 50/s, 18 s left"
    assert cleared == ""
