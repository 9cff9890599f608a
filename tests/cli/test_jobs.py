"""status, show, tail, cancel and retry, on jobs that wait, run and have ended."""

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
from rq import Queue

from tests.cli.conftest import CannedWorker, Run
from tests.sql.builders import outcome_of
from worker.queue.access import QueueAccess, TokenDelta
from worker.queue.job_queue import Delay
from worker.records import AttemptState, Choice, Claim, JobState, Retry
from worker.sql.store import JobStore

UNKNOWN_ID = "0" * 32


def submit(run: Run, prompt: str = "a question", *flags: str) -> str:
    return run("submit", prompt, *flags).stdout.strip()


def test_waiting_job_is_found_in_redis(run: Run) -> None:
    job_id = submit(run, "what waits?", "--max-tokens", "5", "--no-record")
    assert json.loads(run("status", job_id, "--json").stdout) == {job_id: "queued"}
    shown = run("show", job_id)
    assert shown.exit_code == 0
    assert "queued" in shown.stdout
    assert "what waits?" in shown.stdout
    assert "max_tokens" in shown.stdout
    assert json.loads(run("show", job_id, "--json").stdout)["state"] == "queued"


def test_done_job_is_shown_with_its_figures(run: Run, canned_worker: CannedWorker) -> None:
    job_id = submit(run)
    assert canned_worker.answer("the answer\nin two lines") == 1
    shown = run("show", job_id)
    for words in (
        "done",
        "a question",
        "  the answer\n  in two lines",
        "3 tokens, stop",
        "prefix_hit_tokens",
        "canned",
    ):
        assert words in shown.stdout
    assert run("show", job_id, "--output").stdout == "the answer\nin two lines\n"
    detail = json.loads(run("show", job_id, "--json").stdout)
    assert detail["result"]["text"] == "the answer\nin two lines"
    assert detail["stats"]["kv_blocks_peak"] == 7
    assert detail["attempts"][0]["state"] == "done"


def test_output_reaches_a_pipe_exactly(run: Run, canned_worker: CannedWorker) -> None:
    job_id = submit(run)
    canned_worker.answer("\x1b[31mred\x1b[0m \u202etxt\u202c")
    assert run("show", job_id, "--output").stdout == "\x1b[31mred\x1b[0m \u202etxt\u202c\n"


def test_outputs_that_were_chosen_are_shown_with_why(run: Run, canned_worker: CannedWorker) -> None:
    job_id = submit(run)
    (claim,) = canned_worker.claim()
    choices = (Choice(1, "second best", (4, 5), "length", None, -0.75),)
    canned_worker.end(claim, "the best", mean_logprob=-0.25, choices=choices)
    shown = run("show", job_id).stdout
    assert "Output (3 tokens, stop, mean log-probability -0.2500):" in shown
    assert "Output 1 (2 tokens, length, mean log-probability -0.7500):" in shown
    assert json.loads(run("show", job_id, "--json").stdout)["result"]["mean_logprob"] == -0.25


def test_failed_job_is_shown_with_its_error(run: Run, canned_worker: CannedWorker) -> None:
    job_id = submit(run)
    canned_worker.answer(None, "prompt has 9000 tokens; the limit is 8192")
    assert "context_length: prompt has 9000 tokens; the limit is 8192" in run("show", job_id).stdout
    refused = run("show", job_id, "--output")
    assert (refused.exit_code, refused.stderr) == (2, f"error: job {job_id} is failed and has no output\n")


@pytest.mark.parametrize("command", ["show", "status", "tail"])
def test_unknown_job_is_an_error(run: Run, command: str) -> None:
    result = run(command, UNKNOWN_ID)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: no job {UNKNOWN_ID}")
    assert result.stderr.count("\n") == 1


def test_status_counts_queues_workers_and_batches(run: Run, canned_worker: CannedWorker) -> None:
    submit(run, "one", "--batch", "night")
    submit(run, "two", "--queue", "bulk")
    canned_worker.answer("fine")
    submit(run, "three", "--queue", "bulk")
    snapshot = json.loads(run("status", "--batch", "night", "--json").stdout)
    assert {row["queue"]: (row["waiting"], row["running"], row["done"]) for row in snapshot["queues"]} == {
        "default": (0, 0, 1),
        "bulk": (1, 0, 1),
    }
    assert snapshot["batch"]["size"] == 1
    assert snapshot["batch"]["states"] == {"done": 1}
    text = run("status", "--batch", "night").stdout
    assert "Batch night:" in text
    assert run("status", "--batch", "absent").exit_code == 2


def test_cancel_waiting_running_ended_and_unknown(
    run: Run, canned_worker: CannedWorker, empty_queue: redis.Redis, store: JobStore
) -> None:
    ended = submit(run)
    canned_worker.answer("fine")
    running = submit(run)
    canned_worker.claim()
    waiting = submit(run)
    result = run("cancel", waiting, running, "--json")
    assert result.exit_code == 0
    answers = json.loads(result.stdout)
    assert answers[waiting]["outcome"] == "cancelled_waiting"
    assert answers[running]["outcome"] == "cancelling"
    assert canned_worker.queue.cancelling() == {running}
    assert store.states([waiting]) == {waiting: JobState.CANCELLED}
    assert empty_queue.llen("rq:queue:default") == 0
    refused = run("cancel", ended, UNKNOWN_ID)
    assert refused.exit_code == 1
    assert "has ended already" in refused.stdout
    assert "unknown job" in refused.stdout


def test_cancel_again_tells_sql_what_an_interrupted_call_did_not(
    run: Run, empty_queue: redis.Redis, store: JobStore
) -> None:
    job_id = submit(run)
    QueueAccess(empty_queue).cancel(job_id)
    assert run("cancel", job_id).exit_code == 0
    assert store.states([job_id]) == {job_id: JobState.CANCELLED}


def test_retry_keeps_the_id_and_the_attempts(run: Run, canned_worker: CannedWorker, store: JobStore) -> None:
    job_id = submit(run)
    canned_worker.answer(None, "out of luck")
    assert json.loads(run("retry", job_id, "--json").stdout) == {job_id: "retried"}
    assert json.loads(run("retry", job_id, "--json").stdout) == {job_id: "waiting"}
    assert canned_worker.answer("better") == 1
    job = store.job(job_id)
    assert job is not None
    assert job.state is JobState.DONE
    assert [attempt.error_code for attempt in job.attempts] == ["context_length", None]
    refused = run("retry", job_id, UNKNOWN_ID)
    assert refused.exit_code == 1
    assert "is done; nothing to retry" in refused.stdout


def test_retry_of_a_cancelled_job_whose_record_expired(
    run: Run, canned_worker: CannedWorker, empty_queue: redis.Redis
) -> None:
    job_id = submit(run, "asked before")
    run("cancel", job_id)
    empty_queue.flushdb()
    assert run("retry", job_id).exit_code == 0
    (claim,) = canned_worker.claim()
    assert (claim.job_id, claim.job.prompt) == (job_id, "asked before")


def test_retry_finishes_what_an_interrupted_one_began(
    run: Run, canned_worker: CannedWorker, store: JobStore, empty_queue: redis.Redis
) -> None:
    job_id = submit(run)
    canned_worker.answer(None, "out of luck")
    store.mark_retried([job_id])  # and then the process died
    assert json.loads(run("retry", job_id, "--json").stdout) == {job_id: "retried"}
    assert empty_queue.lrange("rq:queue:default", 0, -1) == [job_id.encode()]


def test_retry_refuses_a_record_that_is_no_prompt(
    run: Run, canned_worker: CannedWorker, empty_queue: redis.Redis
) -> None:
    job_id = submit(run, "a question", "--no-record")
    empty_queue.hset(f"rq:job:{job_id}", "data", b"\x80\x04junk")
    dead = canned_worker.queue.claim(["default"], 1).dead
    canned_worker.store.record_dead(dead)
    canned_worker.queue.dead_letter(dead)
    assert "Record:" in run("show", job_id).stdout
    refused = run("retry", job_id)
    assert refused.exit_code == 1
    assert "its record is no prompt job" in refused.stdout


def test_a_recorded_job_outlives_its_spoilt_queue_record(
    run: Run, canned_worker: CannedWorker, empty_queue: redis.Redis
) -> None:
    job_id = submit(run)
    empty_queue.hset(f"rq:job:{job_id}", "data", b"\x80\x04junk")
    dead = canned_worker.queue.claim(["default"], 1).dead
    canned_worker.store.record_dead(dead)
    canned_worker.queue.dead_letter(dead)
    assert json.loads(run("retry", job_id, "--json").stdout) == {job_id: "retried"}
    (claim,) = canned_worker.claim()
    assert (claim.job_id, claim.job.prompt) == (job_id, "a question")


def back_off(canned_worker: CannedWorker) -> Claim:
    """Claim a job, and put it off by an hour after an error."""
    (claim,) = canned_worker.claim()
    retry = Retry(datetime.now(UTC) + timedelta(hours=1), 1)
    canned_worker.store.finish_attempts([replace(outcome_of(claim, AttemptState.FAILED), retry=retry)])
    canned_worker.queue.delay([Delay(claim, retry)])
    return claim


def test_back_off_is_shown_and_counted_and_ended_by_a_retry(run: Run, canned_worker: CannedWorker) -> None:
    job_id = submit(run)
    back_off(canned_worker)
    shown = run("show", job_id).stdout
    for words in ("queued", "retry due", "retries spent  1", "failed_code: it was failed", "Attempts:"):
        assert words in shown
    (row,) = json.loads(run("status", "--json").stdout)["queues"]
    assert (row["waiting"], row["delayed"]) == (0, 1)
    assert "delayed" in run("status").stdout
    retried = run("retry", job_id)
    assert (retried.exit_code, "its back-off is over" in retried.stdout) == (0, True)
    assert canned_worker.queue.enqueue_due(["default"]).moved == (job_id,)
    assert canned_worker.answer("fine") == 1


def test_back_off_is_cancelled(run: Run, canned_worker: CannedWorker, store: JobStore) -> None:
    job_id = submit(run)
    back_off(canned_worker)
    assert run("cancel", job_id).exit_code == 0
    detail = store.job(job_id)
    assert detail is not None
    assert (detail.state, detail.retry_at) == (JobState.CANCELLED, None)
    assert canned_worker.queue.enqueue_due(["default"]).next_in_seconds is None


def test_job_that_rq_delayed_is_shown_with_its_time(run: Run, empty_queue: redis.Redis) -> None:
    queue = Queue("default", connection=empty_queue, serializer="json")
    job = queue.enqueue_in(timedelta(hours=1), "pagemill.prompt", {"prompt": "later"})
    shown = run("show", job.id).stdout
    assert "due" in shown
    assert "later" in shown


def test_deadline_is_kept_and_a_job_past_it_is_not_retried(
    run: Run, canned_worker: CannedWorker, store: JobStore
) -> None:
    job_id = submit(run, "in time", "--deadline", "10m", "--max-retries", "5")
    payload = json.loads(json.loads(run("show", job_id, "--json").stdout)["payload"])
    assert (
        timedelta(minutes=9) < datetime.fromisoformat(payload["deadline"]) - datetime.now(UTC) < timedelta(minutes=11)
    )
    assert payload["max_retries"] == 5
    line = json.dumps({"prompt": "too late", "deadline": "2001-01-01T00:00:00Z"})
    late = run("submit", "--jsonl", "-", stdin=line).stdout.strip()
    canned_worker.answer(None, "the deadline passed")
    detail = store.job(late)
    assert detail is not None
    assert detail.deadline_at == datetime(2001, 1, 1, tzinfo=UTC)
    refused = run("retry", late)
    assert (refused.exit_code, "its deadline has passed" in refused.stdout) == (1, True)
    assert store.states([late]) == {late: JobState.FAILED}


@pytest.mark.parametrize("deadline", ["soon", "2001-01-01T00:00", "99999999999d", "-5m"])
def test_deadline_that_is_none_is_refused(run: Run, deadline: str) -> None:
    result = run("submit", "x", f"--deadline={deadline}")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: Invalid value for '--deadline'")
    assert deadline in result.stderr


def test_tail_of_a_done_job_prints_the_stored_output(run: Run, canned_worker: CannedWorker) -> None:
    job_id = submit(run)
    canned_worker.answer("all of it")
    result = run("tail", job_id)
    assert (result.exit_code, result.stdout) == (0, "all of it\n")


def test_tail_of_a_failed_job_exits_1(run: Run, canned_worker: CannedWorker) -> None:
    job_id = submit(run)
    canned_worker.answer(None, "too long")
    result = run("tail", job_id)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"job {job_id} is failed: too long\n"


def test_tail_follows_tokens_until_the_job_ends(run: Run, canned_worker: CannedWorker) -> None:
    job_id = submit(run)

    def generate() -> None:
        while job_id not in canned_worker.queue.watched():
            pass
        (claim,) = canned_worker.claim()
        canned_worker.queue.publish_tokens({job_id: [TokenDelta("to"), TokenDelta("another output", index=1)]})
        canned_worker.queue.publish_tokens({job_id: [TokenDelta("kens")]})
        canned_worker.end(claim, "tokens")
        canned_worker.queue.publish_tokens({job_id: [TokenDelta("", final=True)]})

    thread = threading.Thread(target=generate)
    thread.start()
    result = run("tail", job_id)
    thread.join()
    assert (result.exit_code, result.stdout) == (0, "tokens\n")
    assert result.stderr == f"job {job_id} waits in queue default\n"


def test_jobs_without_tables_name_the_remedy(run: Run, tmp_path: Path) -> None:
    result = run("show", UNKNOWN_ID, "--database-url", f"sqlite:///{tmp_path}/fresh.db")
    assert result.exit_code == 78
    assert "pagemill db upgrade" in result.stderr
