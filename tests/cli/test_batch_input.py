"""`pagemill batch` with what it cannot take: one line names what is wrong."""

from pathlib import Path

import pytest
import redis

from tests.cli.batch_files import request, write_requests
from tests.cli.conftest import Run
from tests.cli.test_submit import payloads


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["in.jsonl"], 2, "give --output, or --dry-run"),
        (["in.jsonl", "-o", "in.jsonl"], 2, "in.jsonl is the file of IN.jsonl too"),
        (["in.jsonl", "-o", "link.jsonl"], 2, "is the file of IN.jsonl too"),
        (["in.jsonl", "-o", "out.jsonl", "--errors", "out.jsonl"], 2, "is the file of --output too"),
        (["in.jsonl", "-o", "no/out.jsonl"], 2, "cannot be written: No such file or directory"),
        (["absent", "-o", "out.jsonl"], 2, "cannot be read: No such file or directory"),
        (["/dev/null", "-o", "out.jsonl"], 2, "is no regular file"),
        (["empty.jsonl", "-o", "out.jsonl"], 2, "empty.jsonl: holds no requests"),
        (["bad.jsonl", "-o", "out.jsonl"], 2, "none of its 1 lines can be served; line 1: the line is not JSON"),
        (["in.jsonl", "-o", "notes.txt"], 2, "line 1 is no result of this batch"),
        (["in.jsonl", "-o", "out.jsonl", "--window", "soon"], 2, "'soon' is not a span of time"),
        (["in.jsonl", "-o", "out.jsonl", "--tenant", "a b"], 2, "'a b' is not a tenant's name"),
        (["in.jsonl", "-o", "out.jsonl", "--fresh", "--retry-failed"], 2, "give one of --fresh and --retry-failed"),
        (["in.jsonl", "-o", "out.jsonl", "--redis-url", "redis://:pw@127.0.0.1:1"], 69, "cannot reach"),
    ],
)
def test_bad_input_is_one_line(
    run: Run, tmp_path: Path, empty_queue: redis.Redis, arguments: list[str], exit_code: int, words: str
) -> None:
    write_requests(tmp_path, request("a"))
    write_requests(tmp_path, "nonsense", name="bad.jsonl")
    write_requests(tmp_path, "", name="empty.jsonl")
    (tmp_path / "notes.txt").write_text("mine\n")
    (tmp_path / "link.jsonl").symlink_to("in.jsonl")
    result = run("batch", "run", *arguments)
    assert result.exit_code == exit_code
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert words in result.stderr.splitlines()[-1]
    assert (result.stdout, payloads(empty_queue)) == ("", [])
    assert (tmp_path / "notes.txt").read_text() == "mine\n"


@pytest.mark.parametrize("command", ["status", "wait", "results", "cancel"])
def test_unknown_batches_are_named(run: Run, command: str) -> None:
    result = run("batch", command, "batch_none")
    assert result.exit_code == 2
    assert result.stderr == "error: no batch batch_none that was made of a file is known; see `pagemill batch list`\n"
