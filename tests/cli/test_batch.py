"""`pagemill batch`: files of requests to files of results."""

import json
from pathlib import Path

import pytest
import redis

from tests.cli import batch_files
from tests.cli.batch_files import (
    answering,
    by_custom_id,
    content,
    eventually,
    read_lines,
    request,
    write_requests,
)
from tests.cli.conftest import CannedWorker, Run
from tests.cli.test_submit import payloads
from worker.batch.records import BatchState
from worker.batch.store import BatchStore
from worker.cli import batch as batch_commands
from worker.sql.database import open_database
from worker.sql.store import JobStore
from worker.sql.tables import utc_now


def test_run_writes_results_and_errors(
    run: Run, canned_worker: CannedWorker, live_worker: None, tmp_path: Path
) -> None:
    lines = [
        request("a"),
        request("bad-1"),
        request("b", model="smollm2"),
        "nonsense",
        request("c", store=True),
        request("a"),
    ]
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
        monkeypatch.setattr(batch_files, "answer_of", lambda claim: "better now")
        result = run(*command, "--retry-failed", "--json")
    assert "1 requests run again" in result.stderr
    assert (result.exit_code, answered) == (1, ["a", "bad-1", "bad-1"])
    assert by_custom_id(tmp_path / "out.jsonl").keys() == {"a", "bad-1"}
    (left,) = read_lines(tmp_path / "out.errors.jsonl")
    assert left["response"]["body"]["error"]["line"] == 3
    assert json.loads(result.stdout)["completed"] == 2


def test_detached_batches(run: Run, canned_worker: CannedWorker, tmp_path: Path) -> None:
    write_requests(tmp_path, *(request(name) for name in ("a", "b", "bad-1")), "[]")
    submitted = run("batch", "submit", "in.jsonl")
    assert submitted.exit_code == 1  # as the others exit that meet the line at fault
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


def test_waiting_says_what_is_in_the_way(
    run: Run, canned_worker: CannedWorker, live_worker: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_commands, "POLL_SECONDS", 0.02)
    write_requests(tmp_path, request("a"))
    assert "no worker drains queue bulk" in run("batch", "submit", "in.jsonl", "--queue", "bulk").stderr
    run("pause", "default")
    submitted = run("batch", "submit", "in.jsonl")
    assert submitted.exit_code == 0
    assert "queue default is paused" in submitted.stderr
    run("resume", "default")
    with answering(canned_worker):
        waited = run("batch", "wait", submitted.stdout.strip())
    assert waited.exit_code == 0
