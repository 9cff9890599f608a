"""How things are printed: tables, sizes, harmless text, progress."""

import io
import sys
from datetime import UTC, datetime

import pytest
from rich.console import Console

from worker.cli import output, panel
from worker.cli.output import for_display, print_json
from worker.cli.tables import draw_table, format_value, plain_table
from worker.progress import Panel, WorkerProgress
from worker.readable import format_bytes

PROGRESS = WorkerProgress(
    waiting={"default": 3},
    held=2,
    running=2,
    jobs_done=4,
    jobs_failed=1,
    output_tokens=100,
    blocks_held=25,
    blocks_cached=10,
    num_blocks=100,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nnew line", "plain\ttext\nnew line"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\rb\x08c\x7f\x00", "abc"),
        ("\x9b31mred", "31mred"),
        ("\x1b", ""),
        ("user\u202etxt.exe", "usertxt.exe"),
        ("Ünïcödé 漢字 🙂", "Ünïcödé 漢字 🙂"),
    ],
)
def test_text_is_made_harmless_for_a_terminal_only(monkeypatch: pytest.MonkeyPatch, text: str, shown: str) -> None:
    assert for_display(text) == text
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    assert for_display(text) == shown


def test_json_is_ascii_and_knows_the_projects_types(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "\x1b\x9bé\ud800", "at": datetime(2026, 1, 2, tzinfo=UTC), "progress": PROGRESS})
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert "\x1b" not in printed
    assert '"at": "2026-01-02T00:00:00+00:00"' in printed
    assert '"default": 3' in printed
    with pytest.raises(TypeError, match="object has no JSON form"):
        print_json(object())


def test_plain_table_aligns_numbers_to_the_right() -> None:
    text = plain_table("Jobs", ("name", "count"), [("a\nb", 1), ("longer", 1_000), ("none", None)])
    assert text.split("\n") == ["Jobs:", "  name    count", "  a b         1", "  longer  1,000", "  none        -"]


def test_drawn_table_treats_markup_as_text() -> None:
    console = Console(file=io.StringIO(), width=60)
    console.print(draw_table("Jobs", ("name",), [("[red]not markup[/red]",)]))
    assert isinstance(console.file, io.StringIO)
    assert "[red]not markup[/red]" in console.file.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "yes"), (12_345, "12,345"), (0.123456, "0.1235"), (12_345.6, "12,346"), ("x", "x")],
)
def test_values(value: object, text: str) -> None:
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (24 * 2**30, "24 GiB"), (2**60, "1.049e+06 TiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_rate_covers_the_last_seconds() -> None:
    rate = panel.TokenRate()
    readings = [(0.0, 0), (1.0, 100), (5.0, 100), (7.0, 300), (7.1, 300)]
    rates = [rate.update(with_tokens(tokens), now) for now, tokens in readings]
    # The last two are since second 1: a short span between two readings makes no wild rate.
    assert rates == pytest.approx([0.0, 100.0, 20.0, 200 / 6, 200 / 6.1])


def with_tokens(tokens: int) -> WorkerProgress:
    return WorkerProgress(
        waiting={},
        held=0,
        running=0,
        jobs_done=0,
        jobs_failed=0,
        output_tokens=tokens,
        blocks_held=0,
        blocks_cached=0,
        num_blocks=0,
    )


@pytest.mark.parametrize("show", [panel.burst_bar, panel.live_panel])
def test_panels_print_lines_where_there_is_no_terminal(show: Panel, capsys: pytest.CaptureFixture[str]) -> None:
    with show(lambda: PROGRESS):
        pass
    assert capsys.readouterr().err == "5/10 jobs ended (1 failed), 2 running, 0 output tokens/s\n"


@pytest.mark.parametrize("show", [panel.burst_bar, panel.live_panel])
def test_panels_draw_on_a_terminal(
    show: Panel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with show(lambda: PROGRESS):
        pass
    assert "5/10" in capsys.readouterr().err or show is panel.live_panel


def test_live_panel_names_what_matters() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(panel.draw_panel(PROGRESS, 12.34))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for words in ("default", "25 of 100 (25%)", "12.3", "tokens/s"):
        assert words in text
