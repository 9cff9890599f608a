"""The cron commands: what they accept, refuse and print."""

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue

from tests.cli.conftest import CannedWorker, Run
from worker.errors import ExitCode

ADD = ("cron", "add", "nightly", "30 2 * * *", "--tz", "Europe/Berlin", "--prompt", "Good night.")


def read(run: Run, *arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_add_prints_the_next_slots_by_the_schedules_clock(run: Run) -> None:
    added = run(*ADD)
    assert added.exit_code == 0
    lines = added.stdout.splitlines()
    assert lines[1].split() == ["Europe/Berlin", "UTC"]
    assert len(lines) == 5
    assert all(" 02:30 C" in line or " 03:00 C" in line for line in lines[2:])
    assert "fires at 02:30 every day, Europe/Berlin" in added.stderr
    assert "nobody fires schedules now" in added.stderr


def test_add_keeps_what_it_was_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_text('"Hello."\n')
    added = read(
        run,
        *("cron", "add", "files", "@hourly", "--jsonl", "jobs.jsonl", "--queue", "bulk", "--tenant", "acme"),
        *("--missed", "skip", "--overlap", "allow", "--grace", "90s", "--deadline", "2h", "--max-tokens", "5"),
        *("--start", "2030-05-01", "--end", "2030-05-01T02:30", "--tz", "America/New_York", "--metadata", "a=b"),
    )
    assert added["action"] == {
        "kind": "jsonl",
        "path": str(tmp_path / "jobs.jsonl"),
        "defaults": {"max_tokens": 5, "metadata": {"a": "b"}},
        "deadline_seconds": 7200.0,
    }
    assert [slot["local"] for slot in added["next"]] == [f"2030-05-01T0{hour}:00:00-04:00" for hour in range(3)]
    kept = {"queue": "bulk", "tenant": "acme", "missed": "skip", "overlap": "allow", "grace_seconds": 90.0}
    assert added | kept == added
    shown = read(run, "cron", "show", "files")
    assert (shown["state"], shown["action"], shown["runs"]) == ("active", added["action"], [])
    assert [slot["slot_at"] for slot in read(run, "cron", "next", "files", "-n", "9")] == [
        slot["slot_at"] for slot in added["next"]
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["x", "0 0 31 2 *", "--prompt", "a"], "expression: '0 0 31 2 *' can never fire"),
        (["x", "* * * *", "--prompt", "a"], "expression: '* * * *' has 4 fields"),
        (["x", "@daily", "--prompt", "a", "--tz", "Mars/Phobos"], "time zone: 'Mars/Phobos' is not known"),
        (["x", "@daily", "--prompt", "a", "--end", "2020-01-01"], "expression: '@daily' has no slot from now to 2020"),
        (["x", "@daily", "--prompt", "a", "--start", "2030-01-01T10:00", "--end", "2030-01-01T11:00"], "has no slot"),
        (["x", "@daily", "--prompt", "a", "--start", "soon"], "'soon' is not a time"),
        (["x", "@daily", "--prompt", "a", "--start", "0001-01-01", "--tz", "Asia/Tokyo"], "is not within the years"),
        (["x", "@daily", "--prompt", "a", "--grace", "99999999999999w"], "is not a span of time"),
        (["x", "@daily", "--prompt", "a", "--deadline", "900d"], "deadline_seconds: Input should be less than"),
        (["x", "@daily", "--prompt", " "], "prompt: is empty"),
        (["x", "@daily", "--prompt", "a", "--max-tokens", "0"], "max_tokens: Input should be greater than"),
        (["x", "@daily", "--prompt", "a", "--tenant", "a b"], "tenant: String should match"),
        (["a b", "@daily", "--prompt", "a"], "name: 'a b' is none: up to 64 letters"),
        (["x" * 65, "@daily", "--prompt", "a"], "is none: up to 64 letters"),
        (["x", "@daily"], "give one of --prompt, --file, --jsonl, --batch, --rag"),
        (["x", "@daily", "--prompt", "a", "--jsonl", "b"], "give one of --prompt, --file, --jsonl, --batch, --rag"),
        (["x", "@daily", "--batch", "b", "--top-k", "3"], "action: batch.top_k: Extra inputs are not permitted"),
        (["x", "@daily", "--rag", "docs", "--deadline", "1h"], "rag.deadline_seconds: Extra inputs are not"),
        (["x", "@daily", "--rag", "no such"], "action: rag.collection: String should match pattern"),
        (["x", "@daily", "--rag", "docs", "--instructions", " "], "instructions: are empty"),
        (["x", "@daily", "--prompt", "a", "--index"], "--index and --instructions go with --rag"),
        (["x", "@daily", "--file", "missing.txt"], "missing.txt: cannot be read"),
    ],
)
def test_add_refuses_what_cannot_work(run: Run, arguments: list[str], error: str) -> None:
    refused = run("cron", "add", *arguments)
    assert refused.exit_code == ExitCode.USAGE
    assert error in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert read(run, "cron", "ls") == []


def test_add_takes_batch_files_and_collections(run: Run, tmp_path: Path) -> None:
    batch = read(run, "cron", "add", "a", "@daily", "--batch", "r.jsonl", "--max-tokens", "9", "--deadline", "24h")
    assert batch["action"] == {
        "kind": "batch",
        "path": str(tmp_path / "r.jsonl"),
        "max_tokens": 9,
        "deadline_seconds": 86_400.0,
    }
    rag = read(run, "cron", "add", "b", "@daily", "--rag", "manuals", "--index", "--instructions", "In one sentence.")
    assert rag["action"] | {"kind": "rag", "collection": "manuals", "index": True} == rag["action"]
    assert rag["action"]["instructions"] == "In one sentence."
    listed = run("cron", "ls").stdout
    assert "requests of " in listed
    assert "summaries of manuals" in listed


def test_name_is_taken_until_it_is_removed(run: Run) -> None:
    run(*ADD)
    assert "there is a schedule nightly already" in run(*ADD).stderr
    assert run("cron", "rm", "nightly").exit_code == 0
    assert run(*ADD).exit_code == 0
    assert [schedule["state"] for schedule in read(run, "cron", "ls", "--all")] == ["removed", "active"]


@pytest.mark.parametrize("command", ["show", "next", "run", "pause", "resume", "rm"])
def test_unknown_schedule_is_named(run: Run, command: str) -> None:
    refused = run("cron", command, "no\x1b[31m")
    assert refused.exit_code == ExitCode.USAGE
    assert refused.stderr == "error: name: there is no schedule 'no\\x1b[31m'; `pagemill cron ls` lists them\n"


def test_run_fires_now_and_history_tells_what_became_of_it(
    run: Run, canned_worker: CannedWorker, empty_queue: redis.Redis
) -> None:
    run(*ADD)
    run("cron", "pause", "nightly")
    fired = run("cron", "run", "nightly")
    assert fired.exit_code == 0
    batch = fired.stdout.strip()
    assert batch.startswith("nightly.manual.")
    assert fired.stderr.startswith("1 job submitted; ")
    (waiting,) = read(run, "cron", "history", "nightly")
    assert (waiting["state"], waiting["kind"], waiting["jobs"]) == ("submitted", "manual", {"queued": 1})
    assert len(Queue("default", connection=empty_queue).job_ids) == 1
    assert canned_worker.answer("fine") == 1
    assert read(run, "cron", "run", "nightly")["jobs"] == 1
    latest, earlier = read(run, "cron", "history")
    assert (earlier["batch_id"], earlier["jobs"], latest["jobs"]) == (batch, {"done": 1}, {"queued": 1})
    table = run("cron", "history").stdout
    assert "1 done of 1" in table
    assert "1 to do of 1" in table
    assert "by hand" in table
    (schedule,) = read(run, "cron", "ls")
    assert (schedule["state"], schedule["last_run"]["id"]) == ("paused", latest["id"])
    assert "is paused: none of them fires" in run("cron", "next", "nightly").stderr
    assert run("cron", "resume", "nightly").stdout.startswith("Next slots of nightly")
    assert len(read(run, "cron", "resume", "nightly")) == 1


def test_run_of_a_file_with_a_fault_fails(run: Run, tmp_path: Path) -> None:
    run("cron", "add", "files", "@daily", "--jsonl", "jobs.jsonl")
    missing = run("cron", "run", "files")
    assert missing.exit_code == ExitCode.USAGE
    assert missing.stderr == f"error: schedule files: {tmp_path}/jobs.jsonl is not there\n"
    (tmp_path / "jobs.jsonl").write_text('"a"\n{"prompt": 1}\n')
    assert "line 2: prompt: Input should be a valid string" in run("cron", "run", "files").stderr
    assert [detail["state"] for detail in read(run, "cron", "history", "files")] == ["failed", "failed"]
    assert "failed" in run("cron", "ls").stdout
    assert "is not there" in run("cron", "show", "files").stdout


def test_history_of_nothing(run: Run) -> None:
    assert run("cron", "history", "nightly").stderr == "no slot of a schedule nightly has come yet\n"
    assert read(run, "cron", "history", "--since", "7d") == []
