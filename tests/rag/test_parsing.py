"""Files that are made to break their parser cost themselves, and no other."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from worker.confined import MIB
from worker.rag.folder import FolderSource
from worker.rag.parsing import Parser
from worker.rag.reading import Format, UnreadableDocument

GOOD = b"<title>Bees</title><p>All about bees."
LONG = b"<p>" + b"<b>x</b> <i>y</i> " * 400_000


@pytest.fixture
def parser() -> Iterator[Parser]:
    with closing(Parser(memory_bytes=400 * MIB, cpu_seconds=1)) as parser:
        yield parser


def test_a_file_that_takes_too_long_is_given_up(parser: Parser) -> None:
    with pytest.raises(UnreadableDocument, match=r"cannot be parsed: it took more than 1 s of processor time"):
        parser.parse(LONG[: len(LONG) // 4], Format.HTML, "utf-8")
    parser.process.cpu_seconds = 60
    parser.close()
    assert parser.parse(GOOD, Format.HTML, "utf-8") == ("Bees", "All about bees.\n")


def test_a_file_that_needs_too_much_memory_is_given_up(parser: Parser) -> None:
    parser.process.cpu_seconds = 60
    with pytest.raises(UnreadableDocument, match=r"MiB|cannot be read as HTML"):
        parser.parse(LONG * 4, Format.HTML, "utf-8")
    assert parser.parse(GOOD, Format.HTML, "utf-8")[0] == "Bees"


def test_a_file_that_never_ends_is_given_up(parser: Parser) -> None:
    parser.process.wall_seconds = 0.0
    with pytest.raises(UnreadableDocument, match="it took longer than 0 s"):
        parser.parse(GOOD, Format.HTML, "utf-8")


def test_one_hostile_file_leaves_the_others(tmp_path: Path, parser: Parser) -> None:
    (tmp_path / "a.html").write_bytes(GOOD)
    (tmp_path / "b.html").write_bytes(b"<div>" * 200_000)
    (tmp_path / "c.pdf").write_bytes(b"%PDF-1.7\n" + b"1 0 obj << /Kids [1 0 R] /Type /Pages >> " * 1000)
    (tmp_path / "d.html").write_bytes(GOOD)
    parser.process.cpu_seconds = 10
    found = {}
    for item in FolderSource(tmp_path, parser=parser).items():
        try:
            found[item.source] = item.read().title
        except UnreadableDocument as error:
            found[item.source] = f"problem: {error}"
    assert (found["a.html"], found["d.html"]) == ("Bees", "Bees")
    assert found["b.html"].startswith("problem: ")
    assert found["c.pdf"].startswith("problem: ")
    assert parser.process._process is None
