"""`pagemill submit` writes jobs to SQL before Redis has them, and reads what may be long twice."""

import json
import os
import subprocess
import sys
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis

from tests.cli.conftest import PROGRAM, ROOT, CannedWorker, Run, RunProcess
from tests.cli.test_submit import connection_url, payloads
from worker.client import CHUNK_JOBS
from worker.errors import PagemillError
from worker.job_files import check_jobs, new_jobs, opened_jsonl
from worker.jsonl import MAX_LINE_BYTES
from worker.queue.connection import connect
from worker.records import JobState
from worker.sql.store import JobStore


def test_submitted_jobs_are_queued_in_sql(run: Run, store: JobStore, empty_queue: redis.Redis) -> None:
    result = run("submit", "--jsonl", "-", "--batch", "night", stdin='"one"\n{"prompt": "two", "custom_id": "c"}\n')
    first, second = result.stdout.split()
    assert store.states([first, second]) == {first: JobState.QUEUED, second: JobState.QUEUED}
    job = store.job(second)
    assert job is not None
    assert (job.custom_id, job.batch_id, job.queue, job.epoch) == ("c", "night", "default", 0)
    assert [json.loads(job.payload)] == payloads(empty_queue)[1:]
    batch = store.batch("night")
    assert batch is not None
    assert (batch.size, batch.states) == (2, {JobState.QUEUED: 2})


def test_jobs_that_are_not_recorded_are_only_in_redis(run: Run, store: JobStore, empty_queue: redis.Redis) -> None:
    job_id = run("submit", "x", "--no-record").stdout.strip()
    assert store.states([job_id]) == {}
    assert len(payloads(empty_queue)) == 1


def test_the_record_setting_can_say_so_too(run: Run, store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEMILL_RECORD", "false")
    assert store.states([run("submit", "x").stdout.strip()]) == {}
    job_id = run("submit", "x", "--record").stdout.strip()
    assert store.states([job_id]) == {job_id: JobState.QUEUED}


def test_a_recorded_job_is_claimed_answered_and_shown(run: Run, store: JobStore, canned_worker: CannedWorker) -> None:
    job_id = run("submit", "x").stdout.strip()
    assert json.loads(run("show", job_id, "--json").stdout)["state"] == "queued"
    assert canned_worker.answer("yes") == 1
    assert store.states([job_id]) == {job_id: JobState.DONE}


def test_the_default_database_is_made_on_first_use(run_process: RunProcess, tmp_path: Path) -> None:
    first = run_process("submit", "x", "--batch", "b", PAGEMILL_DATABASE_URL="")
    second = run_process("submit", "y", "--batch", "b", PAGEMILL_DATABASE_URL="")
    assert (first.returncode, first.stderr, second.returncode, second.stderr) == (0, "", 0, "")
    checked = run_process("db", "check", PAGEMILL_DATABASE_URL="")
    assert checked.returncode == 0, checked.stderr
    file = tmp_path / "data" / "pagemill.db"
    assert file.stat().st_mode & 0o777 == 0o600
    shown = run_process("show", second.stdout.strip(), "--json", PAGEMILL_DATABASE_URL="")
    assert json.loads(shown.stdout)["state"] == "queued"


def test_several_first_submissions_at_once_make_it_once(environ: dict[str, str], tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
    variables = {**inherited, **environ, "PYTHONPATH": str(ROOT), "PAGEMILL_DATABASE_URL": ""}
    command = [sys.executable, "-c", PROGRAM, "submit", "x"]
    several = [subprocess.Popen(command, env=variables, cwd=tmp_path, stderr=subprocess.PIPE) for _ in range(3)]
    assert [(process.communicate()[1], process.returncode) for process in several] == [(b"", 0)] * 3


def test_a_database_that_was_never_upgraded_is_named(
    run: Run, empty_queue: redis.Redis, empty_database_url: str
) -> None:
    url = empty_database_url.replace("pagemill.db", "another.db")  # the machine's own SQLite file has its tables
    result = run("submit", "x", "--database-url", url)
    assert result.exit_code == 78
    assert "pagemill db upgrade" in result.stderr
    assert result.stderr.count("\n") == 1
    assert empty_queue.keys("rq:*") == []


def test_a_database_that_is_away_keeps_all_out(run: Run, empty_queue: redis.Redis) -> None:
    result = run("submit", "x", "--database-url", "postgresql://me:hidden@127.0.0.1:1/db")
    assert result.exit_code == 69
    assert "0 jobs are in the queue" in result.stderr
    assert "hidden" not in result.stderr
    assert empty_queue.keys("rq:*") == []


@pytest.mark.parametrize("flags", [[], ["--json"], ["--wait"]])
def test_jobs_that_redis_refuses_are_recorded(run: Run, store: JobStore, tmp_path: Path, flags: list[str]) -> None:
    with closing(connect(None, tmp_path / "full")) as connection:
        connection.config_set("maxmemory", 1)
        result = run("submit", "--jsonl", "-", "--redis-url", connection_url(connection), *flags, stdin='"a"\n"b"\n')
    assert result.exit_code == 75
    assert "0 jobs are in the queue, 2 more are recorded in SQL" in result.stderr
    assert "pagemill reconcile" in result.stderr
    ids = json.loads(result.stdout)["ids"] if "--json" in flags else result.stdout.split()
    assert store.states(ids) == dict.fromkeys(ids, JobState.QUEUED)
    assert len(ids) == 2


def test_a_pipe_is_read_twice_too(run: Run, empty_queue: redis.Redis, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=('"a"\n"b"\n',))
    writer.start()
    result = run("submit", "--jsonl", str(pipe), "--batch", "b")
    writer.join()
    assert result.exit_code == 0
    assert [(job["prompt"], job["batch_size"]) for job in payloads(empty_queue)] == [("a", 2), ("b", 2)]


def test_standard_input_that_is_a_file_is_read_from_where_it_stands(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text('"skipped"\n"a"\n"b"\n')
    with (tmp_path / "jobs").open("rb", buffering=0) as file:
        file.seek(10)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "submit", "--jsonl", "-"],
            env={**os.environ, **environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            stdin=file,
            capture_output=True,
            check=True,
        )
    assert len(done.stdout.split()) == 2


def test_a_file_longer_than_a_chunk_keeps_its_order(run: Run, empty_queue: redis.Redis, tmp_path: Path) -> None:
    prompts = [f"question {number}" for number in range(CHUNK_JOBS + 2)]
    (tmp_path / "jobs.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    ids = run("submit", "--jsonl", "jobs.jsonl").stdout.split()
    assert [job["prompt"] for job in payloads(empty_queue)] == prompts
    assert [job.decode() for job in empty_queue.lrange("rq:queue:default", 0, -1)] == ids  # type: ignore[union-attr]


def test_a_line_without_end_is_refused(run: Run) -> None:
    result = run("submit", "--jsonl", "-", stdin='"a"\n"' + "x" * (MAX_LINE_BYTES + 1))
    assert result.exit_code == 2
    assert result.stderr == f"error: line 2: has more than {MAX_LINE_BYTES} bytes\n"


def test_what_does_not_fit_with_its_batch_size_is_refused_before_redis(run: Run, empty_queue: redis.Redis) -> None:
    prompt = "x" * (1_048_576 - len('{"schema_version": 1, "prompt": "", "batch_id": "b"}'))
    assert run("submit", "--jsonl", "-", stdin=json.dumps({"prompt": prompt, "batch_id": "b"})).exit_code == 0
    empty_queue.flushdb()
    result = run("submit", "--jsonl", "-", "--batch", "b", stdin=json.dumps({"prompt": prompt}))
    assert (result.exit_code, empty_queue.keys("rq:*")) == (2, [])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('"a"\n""\n', "line 2: prompt: is empty.*; it was changed while it was being submitted"),
        ('"a"\n', "1 of 2 jobs"),
    ],
)
def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text('"a"\n"b"\n')
    with opened_jsonl(str(path)) as read:
        assert check_jobs(read, {}, lambda number: None) == 2
        path.write_text(content)
        jobs = new_jobs(read, {}, 2)
        assert next(jobs).payload["prompt"] == "a"
        with pytest.raises(PagemillError, match=words):
            next(jobs)


def test_a_deadline_is_recorded_as_the_queue_has_it(run: Run, store: JobStore, canned_worker: CannedWorker) -> None:
    job_id = run("submit", "x", "--deadline", "2099-01-01T00:00:00+02:00").stdout.strip()
    recorded = store.job(job_id)
    assert recorded is not None
    assert recorded.deadline_at == datetime(2098, 12, 31, 22, tzinfo=UTC)
    canned_worker.claim()
    begun = store.job(job_id)
    assert begun is not None
    assert begun.deadline_at == recorded.deadline_at
