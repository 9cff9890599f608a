"""`pagemill batch`: files of requests to files of results, interrupted and gone on with."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.cli.conftest import PROGRAM, ROOT, CannedWorker, Run
from tests.cli.test_submit import payloads
from tests.sql.builders import worker_of
from worker.batch import submitting
from worker.batch.records import BatchState
from worker.batch.store import BatchStore
from worker.cli import batch as batch_commands
from worker.queue.submission import enqueue as enqueue_jobs
from worker.records import Claim
from worker.sql.database import open_database
from worker.sql.store import JobStore
from worker.sql.tables import utc_now

WAIT_SECONDS = 60.0


def request(custom_id: str, **body: Any) -> str:
    messages = [{"role": "user", "content": f"What is {custom_id}?"}]
    line = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": messages, **body},
    }
    return json.dumps(line)


def write_requests(folder: Path, *lines: str, name: str = "in.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def by_custom_id(path: Path) -> dict[str, dict[str, Any]]:
    lines = read_lines(path)
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines), "a custom_id came twice"
    return found


def content(line: Mapping[str, Any]) -> str:
    text: str = line["response"]["body"]["choices"][0]["message"]["content"]
    return text


def answer_of(claim: Claim) -> str | None:
    """What the canned worker says; None is to fail."""
    name = claim.job.custom_id or ""
    return None if name.startswith("bad") else f"it is {name}"


@contextmanager
def answering(worker: CannedWorker, limit: int | None = None) -> Iterator[list[str]]:
    """Answer jobs from a thread until the block ends, or until `limit` were; gives the custom ids in their order."""
    answered: list[str] = []
    stopped = threading.Event()

    def answer() -> None:
        while not stopped.wait(0.02) and (limit is None or len(answered) < limit):
            for claim in worker.claim(10 if limit is None else min(10, limit - len(answered))):
                worker.end(claim, answer_of(claim), "the prompt is too long")
                answered.append(claim.job.custom_id or "")

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield answered
    finally:
        stopped.set()
        thread.join()


@pytest.fixture
def live_worker(store: JobStore) -> None:
    """A worker that SQL knows as alive, serving the model smollm2."""
    store.register_worker(worker_of("canned", started_at=utc_now()))


def test_run_writes_results_and_errors(
    run: Run, canned_worker: CannedWorker, live_worker: None, tmp_path: Path
) -> None:
    lines = [request("a"), request("bad-1"), request("b", model="smollm2"), "nonsense", request("c", n=2), request("a")]
    write_requests(tmp_path, *lines, request("d", model="gpt-4o"))
    with answering(canned_worker) as answered:
        result = run("batch", "run", "in.jsonl", "-o", "out.jsonl", "--errors", "err.jsonl", "--json")
    assert result.exit_code == 1, result.stderr
    assert sorted(answered) == ["a", "b", "bad-1"]
    document = json.loads(result.stdout)
    assert (document["state"], document["requests"], document["completed"], document["failed"]) == (
        "completed",
        7,
        2,
        5,
    )

    out = by_custom_id(tmp_path / "out.jsonl")
    assert {name: content(line) for name, line in out.items()} == {"a": "it is a", "b": "it is b"}
    first = out["a"]
    assert (first["error"], first["response"]["status_code"]) == (None, 200)
    body = first["response"]["body"]
    assert (body["object"], body["usage"]["total_tokens"], body["usage"]["prompt_tokens_details"]) == (
        "chat.completion",
        13,
        {"cached_tokens": 4},
    )
    errors = read_lines(tmp_path / "err.jsonl")
    told = {(line["custom_id"], line["response"]["status_code"]) for line in errors}
    assert told == {("bad-1", 400), (None, 400), ("c", 400), ("a", 400), ("d", 404)}
    codes = {line["response"]["body"]["error"]["code"] for line in errors}
    assert codes == {
        *("context_length_exceeded", "invalid_json_line", "unsupported_value"),
        *("duplicate_custom_id", "model_not_found"),
    }
    assert [line["response"]["body"]["error"].get("line") for line in errors if line["custom_id"] is None] == [4]


def test_jobs_are_those_that_the_flags_ask_for(run: Run, empty_queue: redis.Redis, tmp_path: Path) -> None:
    write_requests(tmp_path, request("a", model="gpt-4o", temperature=0))
    flags = ["--queue", "bulk", "--tenant", "acme", "--model", "smollm2", "--max-tokens", "9", "--window", "2h"]
    submitted = run("batch", "submit", "in.jsonl", *flags)
    assert submitted.exit_code == 0, submitted.stderr
    batch_id = submitted.stdout.strip()
    (job,) = payloads(empty_queue, "bulk")
    assert job.pop("deadline") > utc_now().isoformat()
    assert job == {
        "schema_version": 1,
        "messages": [{"role": "user", "content": "What is a?"}],
        "model": "smollm2",
        "tenant": "acme",
        "batch_id": batch_id,
        "batch_size": 1,
        "custom_id": "a",
        "max_tokens": 9,
    }


def test_nothing_is_done_twice_when_all_is_done(run: Run, canned_worker: CannedWorker, tmp_path: Path) -> None:
    write_requests(tmp_path, *(request(name) for name in "abc"))
    command = ("batch", "run", "in.jsonl", "-o", "out.jsonl")
    with answering(canned_worker) as answered:
        assert run(*command).exit_code == 0
        written = (tmp_path / "out.jsonl").read_bytes()
        again = run(*command)
        assert (again.exit_code, (tmp_path / "out.jsonl").read_bytes()) == (0, written)
        assert "has ended before" in again.stderr
        (tmp_path / "out.jsonl").unlink()
        assert run(*command).exit_code == 0
        assert by_custom_id(tmp_path / "out.jsonl").keys() == {"a", "b", "c"}
        assert len(answered) == 3
        fresh = run(*command, "--fresh")
        assert fresh.exit_code == 0
        assert len(answered) == 6
    assert len(by_custom_id(tmp_path / "out.jsonl")) == 3
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_failed_requests_run_again_when_asked(
    run: Run, canned_worker: CannedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_requests(tmp_path, request("a"), request("bad-1"), "nonsense")
    command = ("batch", "run", "in.jsonl", "-o", "out.jsonl")
    with answering(canned_worker) as answered:
        assert run(*command).exit_code == 1
        assert len(read_lines(tmp_path / "out.errors.jsonl")) == 2
        monkeypatch.setattr(sys.modules[__name__], "answer_of", lambda claim: "better now")
        result = run(*command, "--retry-failed", "--json")
    assert "1 requests run again" in result.stderr
    assert (result.exit_code, answered) == (1, ["a", "bad-1", "bad-1"])
    assert by_custom_id(tmp_path / "out.jsonl").keys() == {"a", "bad-1"}
    (left,) = read_lines(tmp_path / "out.errors.jsonl")
    assert left["response"]["body"]["error"]["line"] == 3
    assert json.loads(result.stdout)["completed"] == 2


@contextmanager
def run_in_background(environ: Mapping[str, str], folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**inherited, **environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited for {WAIT_SECONDS:g} s"
        time.sleep(0.02)


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
    monkeypatch.setattr(submitting, "CHUNK_JOBS", 4)
    calls: list[int] = []

    def enqueue(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return enqueue_jobs(*arguments, **options)

    monkeypatch.setattr(submitting, "enqueue", enqueue)
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


def test_detached_batches(run: Run, canned_worker: CannedWorker, tmp_path: Path) -> None:
    write_requests(tmp_path, *(request(name) for name in ("a", "b", "bad-1")), "[]")
    submitted = run("batch", "submit", "in.jsonl")
    assert submitted.exit_code == 0
    batch_id = submitted.stdout.strip()
    assert "1 of 4 lines are at fault and are not run" in submitted.stderr
    assert "no worker is alive" in submitted.stderr
    early = run("batch", "results", batch_id)
    assert (early.exit_code, early.stdout) == (75, "")
    with answering(canned_worker):
        waited = run("batch", "wait", batch_id, "--json")
    assert (waited.exit_code, json.loads(waited.stdout)["state"]) == (1, "completed")
    shown = json.loads(run("batch", "status", batch_id, "--json").stdout)
    assert (shown["completed"], shown["failed"], shown["requests"], shown["input"]) == (2, 2, 4, "in.jsonl")
    results = run("batch", "results", batch_id, "--errors", "err.jsonl")
    assert results.exit_code == 1
    assert [json.loads(line)["custom_id"] for line in results.stdout.splitlines()] == ["a", "b"]
    assert [line["custom_id"] for line in read_lines(tmp_path / "err.jsonl")] == [None, "bad-1"]
    assert run("batch", "results", batch_id, "-o", "out.jsonl").exit_code == 1
    assert (tmp_path / "out.jsonl").read_text() == results.stdout
    assert batch_id in run("batch", "list").stdout


def test_a_cancelled_batch_keeps_what_is_done(run: Run, canned_worker: CannedWorker, tmp_path: Path) -> None:
    write_requests(tmp_path, *(request(name) for name in "abcd"))
    batch_id = run("batch", "submit", "in.jsonl").stdout.strip()
    with answering(canned_worker, limit=1) as answered:
        eventually(lambda: answered)
    cancelled = json.loads(run("batch", "cancel", batch_id, "--json").stdout)
    assert (cancelled["state"], cancelled["completed"], cancelled["failed"]) == ("cancelled", 1, 3)
    run("batch", "results", batch_id, "-o", "out.jsonl", "--errors", "err.jsonl")
    assert len(by_custom_id(tmp_path / "out.jsonl")) == 1
    errors = by_custom_id(tmp_path / "err.jsonl").values()
    assert [line["error"]["code"] for line in errors] == ["batch_cancelled"] * 3
    assert json.loads(run("batch", "cancel", batch_id, "--json").stdout) == cancelled


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


def test_a_strict_run_stops_at_a_fault(run: Run, empty_queue: redis.Redis, tmp_path: Path, store: JobStore) -> None:
    write_requests(tmp_path, request("a"), "nonsense")
    result = run("batch", "run", "in.jsonl", "-o", "out.jsonl", "--strict")
    assert result.exit_code == 2
    assert "1 of 2 lines are at fault; line 2: the line is not JSON" in result.stderr
    assert payloads(empty_queue) == []
    assert len(read_lines(tmp_path / "out.errors.jsonl")) == 1
    (status,) = BatchStore(open_database(f"sqlite:///{tmp_path}/pagemill.db")).latest(5)
    assert status.batch.state is BatchState.FAILED


def test_dry_run_tells_and_does_nothing(
    run: Run, canned_worker: CannedWorker, live_worker: None, tmp_path: Path, empty_queue: redis.Redis
) -> None:
    run("submit", "x")
    canned_worker.answer("yes")
    lines = [request(f"n{number}", max_tokens=10) for number in range(4)]
    write_requests(tmp_path, *lines, *("nonsense" for _ in range(25)))
    result = run("batch", "run", "in.jsonl", "--dry-run", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["requests"], document["at_fault"], document["most_output_tokens"]) == (29, 25, 40)
    assert document["prompt_tokens"] == 4 * 3  # 11 bytes each
    assert document["prompt_tokens_counted"] == "estimated at 4 bytes a token: no model is set"
    assert document["seconds"] > 0
    assert [fault["line"] for fault in document["faults"]] == list(range(5, 30))
    text = run("batch", "run", "in.jsonl", "--dry-run")
    assert "and 5 more lines at fault" in text.stderr
    assert "the last 1 jobs" in text.stdout
    assert payloads(empty_queue) == []
    assert json.loads(run("batch", "list", "--json").stdout) == []


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


def test_waiting_says_what_is_in_the_way(
    run: Run, canned_worker: CannedWorker, live_worker: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_commands, "POLL_SECONDS", 0.02)
    write_requests(tmp_path, request("a"))
    assert "no worker drains queue bulk" in run("batch", "submit", "in.jsonl", "--queue", "bulk").stderr
    run("pause", "default")
    submitted = run("batch", "submit", "in.jsonl")
    assert "queue default is paused" in submitted.stderr
    run("resume", "default")
    with answering(canned_worker):
        waited = run("batch", "wait", submitted.stdout.strip())
    assert waited.exit_code == 0
