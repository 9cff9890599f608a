"""Files of results: whole lines of one batch, whatever happened to the command that wrote them."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from worker.batch.output_file import opened_output
from worker.batch.records import job_id_of
from worker.batch.result_lines import request_id_of
from worker.errors import ExitCode, PagemillError, TryLater

BATCH = "batch_0123456789abcdef01234567"


def line_for(line: int, batch_id: str = BATCH) -> bytes:
    return json.dumps({"id": request_id_of(job_id_of(batch_id, line)), "text": "x" * 50}).encode() + b"\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_what_is_there_is_known_and_appended_to(path: Path) -> None:
    with opened_output(path) as output:
        assert len(output.claim(BATCH)) == 0
        output.append([line_for(3), line_for(1)])
    with opened_output(path) as output:
        assert list(output.claim(BATCH)) == [1, 3]
        output.append([line_for(2)])
        output.sync()
    assert path.read_bytes() == line_for(3) + line_for(1) + line_for(2)


@pytest.mark.parametrize("torn", [line_for(2)[:-1], b'{"id": "bat', b"\0" * 100_000])
def test_a_torn_last_line_is_cut_off(path: Path, torn: bytes) -> None:
    for before in (line_for(1), b""):
        path.write_bytes(before + torn)
        with opened_output(path) as output:
            assert list(output.claim(BATCH)) == [1][: len(before)]
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    "foreign", [line_for(1, "batch_ffffffffffffffffffffffff"), b"my notes\n", b"[]\n", b'{"id": 5}\n']
)
def test_other_content_is_left_alone(path: Path, foreign: bytes) -> None:
    path.write_bytes(line_for(1) + foreign)
    with opened_output(path) as output, pytest.raises(PagemillError, match=r"out\.jsonl: line 2 is no result of this"):
        output.claim(BATCH)
    assert path.read_bytes() == line_for(1) + foreign
    with opened_output(path) as output:
        output.clear()
    assert path.read_bytes() == b""


def test_two_commands_do_not_write_one_file(path: Path) -> None:
    with opened_output(path), pytest.raises(TryLater, match="another command is writing it"), opened_output(path):
        pass


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Have the system refuse what makes a file larger, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_whole_lines(path: Path) -> None:
    with opened_output(path) as output:
        output.claim(BATCH)
        output.append([line_for(1)])
        with file_size_limit(2 * len(line_for(1)) + 7), pytest.raises(TryLater, match="make room") as caught:
            output.append([line_for(2), line_for(3)])
        assert caught.value.exit_code is ExitCode.TRY_LATER
        assert path.read_bytes() == line_for(1)
        output.append([line_for(4)])
    assert path.read_bytes() == line_for(1) + line_for(4)


def test_what_cannot_be_a_file_of_results_is_refused(tmp_path: Path) -> None:
    for place, words in (
        (tmp_path / "no" / "out", "No such file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/null"), "no regular"),
    ):
        with pytest.raises(PagemillError, match=words), opened_output(place):
            pass
