"""`pagemill batch` that is interrupted, or whose services go away: it goes on, and nothing is done twice."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.cli.batch_files import (
    WAIT_SECONDS,
    answering,
    at_second_chunk,
    by_custom_id,
    eventually,
    request,
    run_in_background,
    write_requests,
)
from tests.cli.conftest import CannedWorker, Run
from worker.batch import submitting


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda how: how.name)
def test_an_interrupted_run_goes_on(
    run: Run, canned_worker: CannedWorker, environ: dict[str, str], tmp_path: Path, how: signal.Signals
) -> None:
    names = [f"n{number}" for number in range(60)] + ["bad-1"]
    write_requests(tmp_path, *(request(name) for name in names))
    command = ("batch", "run", "in.jsonl", "-o", "out.jsonl")
    output = tmp_path / "out.jsonl"
    with run_in_background(environ, tmp_path, *command) as process, answering(canned_worker, limit=25) as first:
        eventually(lambda: output.exists() and output.read_bytes().count(b"\n") >= 10)
        process.send_signal(how)
        _, stderr = process.communicate(timeout=WAIT_SECONDS)
        eventually(lambda: len(first) == 25)
    assert process.returncode == (-9 if how is signal.SIGKILL else 130)
    if how is signal.SIGINT:
        assert "interrupted; what was submitted goes on" in stderr
        assert "Traceback" not in stderr
    with output.open("ab") as file:
        file.write(b'{"id": "batch_req_0123')  # as a crash of the machine may leave it
    with answering(canned_worker) as second:
        assert run(*command).exit_code == 1
    assert sorted([*first, *second]) == sorted(names)
    assert by_custom_id(output).keys() == set(names) - {"bad-1"}
    assert by_custom_id(tmp_path / "out.errors.jsonl").keys() == {"bad-1"}


def test_an_interrupted_submission_goes_on(
    run: Run, canned_worker: CannedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_queue: redis.Redis
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    at_second_chunk(monkeypatch, interrupt)
    names = [f"n{number}" for number in range(10)]
    write_requests(tmp_path, *(request(name) for name in names))
    assert run("batch", "submit", "in.jsonl").exit_code == 130
    with answering(canned_worker, limit=3) as first:
        eventually(lambda: len(first) == 3)
    (half,) = json.loads(run("batch", "list", "--json").stdout)
    assert (half["state"], half["completed"]) == ("validating", 3)
    batch_id = run("batch", "submit", "in.jsonl").stdout.strip()
    assert batch_id == half["batch"]
    with answering(canned_worker) as second:
        assert run("batch", "wait", batch_id).exit_code == 0
    assert sorted([*first, *second]) == names
    assert run("batch", "submit", "in.jsonl").stdout.strip() != batch_id  # a whole one is another


def test_a_run_that_was_cancelled_before_it_was_submitted_begins_anew_when_asked(
    run: Run, canned_worker: CannedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    write_requests(tmp_path, request("a"))
    command = ("batch", "run", "in.jsonl", "-o", "out.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(submitting, "enqueue", interrupted)
        assert run(*command).exit_code == 130
    (begun,) = json.loads(run("batch", "list", "--json").stdout)
    assert json.loads(run("batch", "cancel", begun["batch"], "--json").stdout)["state"] == "cancelled"
    refused = run(*command)
    assert (refused.exit_code, refused.stderr) == (
        2,
        f"error: batch {begun['batch']} was cancelled before it was submitted; --fresh begins anew\n",
    )
    with answering(canned_worker):
        assert run(*command, "--fresh").exit_code == 0
    assert by_custom_id(tmp_path / "out.jsonl").keys() == {"a"}
