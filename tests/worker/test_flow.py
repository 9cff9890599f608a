"""The flow of jobs through a worker: from the queue through the engine to SQL, and back to the queue."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue, Worker
from rq.job import Job, JobStatus

from tests.worker.fakes import (
    BYTES_PER_BLOCK,
    CONFIG,
    ENDLESS,
    ScriptedRunner,
    ScriptError,
    answer,
    decode,
    encode,
    eventually,
    make_flow,
    running,
)
from worker.client import ends, submit
from worker.jobs import PromptJob
from worker.records import AttemptState, JobState
from worker.sql.store import JobStore


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_two_hundred_jobs_over_two_queues(
    queue_connection: redis.Redis, store: JobStore, async_scheduling: bool
) -> None:
    """Every job ends once, in SQL and in Redis; the first queue goes first, and each keeps its order."""
    low = submit(queue_connection, [f"low {number}" for number in range(100)], queue="low")
    high = submit(queue_connection, [f"high {number}" for number in range(100)], queue="high")
    runner = ScriptedRunner()
    config = replace(CONFIG, async_scheduling=async_scheduling)
    flow = make_flow(
        queue_connection, store, runner, config=config, queues=("high", "low"), lower_queue_share=0.0, max_jobs=16
    )
    flow.run(burst=True)

    expected = [f"{queue} {number}" for queue in ("high", "low") for number in range(100)]
    assert runner.order == expected
    assert set(runner.generations.values()) == {1}
    for job_id, prompt in zip((*high, *low), expected, strict=True):
        detail = store.job(job_id)
        assert detail is not None
        assert detail.state is JobState.DONE
        assert detail.result is not None
        assert (detail.result.text, detail.result.finish_reason) == (answer(prompt), "stop")
        assert [attempt.state for attempt in detail.attempts] == [AttemptState.DONE]
        job = Job.fetch(job_id, connection=queue_connection, serializer="json")
        assert job.get_status() is JobStatus.FINISHED
        assert (job.return_value() or {})["text"] == answer(prompt)
    assert queue_connection.keys("pagemill:leases:*") == []
    worker = store.workers()[0]
    assert (worker.counters.jobs_done, worker.counters.jobs_failed) == (200, 0)
    assert worker.stopped_at is not None


def test_figures_of_a_job(connection: redis.Redis, sqlite_store: JobStore) -> None:
    before = datetime.now(UTC)
    (job_id,) = submit(connection, ["What is a block table?"])
    make_flow(connection, sqlite_store).run(burst=True)
    detail = sqlite_store.job(job_id)
    assert detail is not None
    assert detail.stats is not None
    assert detail.result is not None
    assert detail.ended_at is not None
    stats, output = detail.stats, answer("What is a block table?")
    assert detail.result.prompt_tokens == len("What is a block table?")
    assert detail.result.completion_tokens == len(output) + 1  # and the end of sequence
    assert detail.result.token_ids == (*output.encode(), 256)
    assert stats.ttft_ms is not None
    assert stats.itl_mean_ms is not None
    assert stats.itl_p99_ms is not None
    assert 0 <= stats.queue_ms <= stats.queue_ms + stats.ttft_ms <= stats.e2e_ms
    assert 0 < stats.itl_mean_ms <= stats.e2e_ms
    blocks = -(-(detail.result.prompt_tokens + len(output)) // CONFIG.block_size)
    assert stats.kv_blocks_peak == blocks
    assert stats.kv_bytes_peak == blocks * BYTES_PER_BLOCK
    assert stats.kv_block_seconds > 0
    assert stats.memory_peak_bytes == 1 << 20
    assert before <= detail.ended_at <= datetime.now(UTC)


def test_shared_prefixes_are_counted(connection: redis.Redis, sqlite_store: JobStore) -> None:
    document = "The history of paging. " * 20
    ids = submit(connection, [f"{document} {question}" for question in ("Who?", "And when?", "Or where?")])
    make_flow(connection, sqlite_store, max_jobs=1).run(burst=True)
    hits = [detail.stats.prefix_hit_tokens for job_id in ids if (detail := sqlite_store.job(job_id)) and detail.stats]
    shared = len(document) // CONFIG.block_size * CONFIG.block_size
    assert hits == [0, shared, shared]


def test_burst_waits_for_held_jobs_and_for_what_they_release(connection: redis.Redis, sqlite_store: JobStore) -> None:
    queue = Queue("default", connection=connection, serializer="json")
    first = queue.enqueue("pagemill.prompt", {"prompt": "first"})
    second = queue.enqueue("pagemill.prompt", {"prompt": "second"}, depends_on=first)
    make_flow(connection, sqlite_store, ScriptedRunner(step_seconds=0.02)).run(burst=True)
    assert sqlite_store.states([first.id, second.id]) == {first.id: JobState.DONE, second.id: JobState.DONE}


def test_worker_shows_in_rqs_lists_while_it_lives(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 10_000}])
    flow = make_flow(
        connection, sqlite_store, ScriptedRunner(step_seconds=0.001), beat_seconds=0.1, queues=("default", "bulk")
    )
    with running(flow) as worker:
        eventually(lambda: Worker.all(connection=connection))
        (seen,) = Worker.all(connection=connection)
        assert seen.name == "worker-1"
        assert seen.queue_names() == ["default", "bulk"]
        eventually(lambda: Worker.all(connection=connection)[0].get_state() == "busy")
        assert [execution.job_id for execution in seen.get_current_executions(refresh=True)] == [job_id]
        assert 60 < connection.ttl(seen.key) <= 120

        connection.delete(seen.key, "rq:workers", "rq:workers:default")  # as after a Redis that was wiped
        eventually(lambda: [found.name for found in Worker.all(connection=connection)] == ["worker-1"])
        eventually(lambda: connection.ttl(seen.key) > 60)
        eventually(lambda: sqlite_store.workers()[0].last_heartbeat_at > sqlite_store.workers()[0].record.started_at)
        worker.stop_at_once()
    assert Worker.all(connection=connection) == []
    assert sqlite_store.workers()[0].stopped_at is not None


def test_entry_in_rqs_lists_outlives_rare_beats(connection: redis.Redis, sqlite_store: JobStore) -> None:
    flow = make_flow(connection, sqlite_store, beat_seconds=600.0, lease_seconds=1200.0)
    assert flow.worker.worker_ttl == 1800


@pytest.mark.parametrize(
    ("payload", "code", "parts"),
    [
        ({"prompt": "x" * 100, "max_tokens": 16_384}, "context_length", ("100", "16384")),
        ({"prompt": "hello", "model": "another/model"}, "model_not_served", ("another/model", "scripted")),
        ({"prompt": "hello", "stop_token_ids": [257]}, "invalid_token", ("257", "256")),
    ],
)
def test_job_that_cannot_be_served_fails_with_its_reason(
    connection: redis.Redis, sqlite_store: JobStore, payload: dict[str, object], code: str, parts: tuple[str, ...]
) -> None:
    bad, good = submit(connection, [payload, "hello"])
    make_flow(connection, sqlite_store).run(burst=True)
    found = {end.job_id: end for end in ends(connection, [bad, good], timeout_seconds=10)}
    detail = sqlite_store.job(bad)
    assert detail is not None
    assert (detail.state, detail.error_code) == (JobState.FAILED, code)
    assert all(part in (detail.error_message or "") for part in parts)
    assert found[bad].state is JobState.FAILED
    assert (found[bad].error or "").startswith(code)
    assert found[good].state is JobState.DONE


def test_refusal_of_a_model_tells_no_path(connection: redis.Redis, sqlite_store: JobStore, tmp_path: Path) -> None:
    """Clients of `pagemill serve` read it; a worker that serves a local folder is known by the folder's own name."""
    folder = tmp_path / "smollm2"
    folder.mkdir()
    flow = make_flow(connection, sqlite_store)
    flow._intake._model_names = frozenset({str(folder), "smollm2"})
    bad, good = submit(connection, [{"prompt": "hello", "model": name} for name in ("gpt", str(folder))])
    flow.run(burst=True)
    refused, done = sqlite_store.job(bad), sqlite_store.job(good)
    assert refused is not None
    assert refused.error_message == "model: 'gpt' is not served here; this worker serves 'smollm2'"
    assert done is not None
    assert done.state is JobState.DONE


def test_without_max_tokens_an_output_may_fill_the_context(connection: redis.Redis, sqlite_store: JobStore) -> None:
    full = CONFIG.max_model_len
    jobs = [{"prompt": ENDLESS.ljust(size, "."), "max_tokens": None} for size in (full - 40, full)]
    fitting, too_long = submit(connection, jobs)
    make_flow(connection, sqlite_store).run(burst=True)
    done, refused = sqlite_store.job(fitting), sqlite_store.job(too_long)
    assert done is not None
    assert done.result is not None
    assert (done.result.completion_tokens, done.result.finish_reason) == (40, "length")
    assert refused is not None
    assert refused.error_code == "context_length"
    assert f"prompt has {full} tokens" in (refused.error_message or "")


def test_records_that_are_no_jobs_are_dead_lettered_and_never_run(
    connection: redis.Redis, sqlite_store: JobStore
) -> None:
    foreign = Queue("default", connection=connection, serializer="json").enqueue("os.system", "true")
    pickled = Queue("default", connection=connection).enqueue("pagemill.prompt", {"prompt": "hello"})
    invalid = Queue("default", connection=connection, serializer="json").enqueue("pagemill.prompt", {"prompt": " "})
    (good,) = submit(connection, ["hello"])
    make_flow(connection, sqlite_store).run(burst=True)
    codes = {}
    for job in (foreign, pickled, invalid):
        detail = sqlite_store.job(job.id)
        assert detail is not None
        assert detail.state is JobState.DEAD
        codes[job.id] = detail.error_code
    assert codes == {foreign.id: "wrong_function", pickled.id: "pickled_record", invalid.id: "invalid_job"}
    assert connection.llen("pagemill:dead:default") == 3
    assert sqlite_store.states([good]) == {good: JobState.DONE}


def test_bug_in_the_tokenizer_fails_one_job(
    connection: redis.Redis, sqlite_store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fragile(job: PromptJob) -> list[int]:
        if job.prompt == "bad":
            raise UnicodeError("secret\nof the tokenizer")
        return encode(job)

    bad, good = submit(connection, ["bad", "good"])
    make_flow(connection, sqlite_store, encode=fragile).run(burst=True)
    detail = sqlite_store.job(bad)
    assert detail is not None
    assert (detail.state, detail.error_code) == (JobState.FAILED, "internal_error")
    assert detail.error_message == "the worker met an unexpected UnicodeError; its log has the details"
    assert sqlite_store.states([good]) == {good: JobState.DONE}
    assert "secret" in caplog.text


def test_bug_in_the_detokenizer_fails_one_job(connection: redis.Redis, sqlite_store: JobStore) -> None:
    def fragile(token_ids: Sequence[int]) -> str:
        text = decode(token_ids)
        if text == "<bad>":
            raise ScriptError(text)
        return text

    bad, good = submit(connection, ["bad", "good"])
    make_flow(connection, sqlite_store, decode=fragile).run(burst=True)
    detail = sqlite_store.job(bad)
    assert detail is not None
    assert (detail.state, detail.error_code) == (JobState.FAILED, "internal_error")
    assert sqlite_store.states([good]) == {good: JobState.DONE}


def test_bug_in_the_detokenizer_within_a_step_ends_its_own_job(connection: redis.Redis, sqlite_store: JobStore) -> None:
    """Stop strings make the engine detokenize within the step, which others share."""

    def fragile(token_ids: Sequence[int]) -> str:
        text = decode(token_ids)
        if "bad" in text:
            raise ScriptError("secret")
        return text

    jobs: list[dict[str, Any]] = [{"prompt": "abc"}, {"prompt": "bad " * 10, "stop": ["never said"]}, {"prompt": "xyz"}]
    first, bad, last = submit(connection, jobs)
    make_flow(connection, sqlite_store, decode=fragile).run(burst=True)
    assert sqlite_store.states([first, bad, last]) == {
        first: JobState.DONE,
        bad: JobState.FAILED,
        last: JobState.DONE,
    }
    detail = sqlite_store.job(bad)
    assert detail is not None
    assert detail.error_code == "internal_error"
    assert "secret" not in str(detail.error_message)


def test_output_is_cut_before_a_stop_string(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": "one, two, three", "stop": ["thr", "two,"]}])
    make_flow(connection, sqlite_store).run(burst=True)
    result = sqlite_store.results([job_id])[job_id]
    assert (result.text, result.finish_reason) == ("<one, ", "stop_string")


def test_what_postgresql_cannot_hold_is_replaced(queue_connection: redis.Redis, store: JobStore) -> None:
    runner = ScriptedRunner(reply=lambda _: "a\x00b")
    (job_id,) = submit(queue_connection, ["hello"])
    make_flow(queue_connection, store, runner).run(burst=True)
    assert store.results([job_id])[job_id].text == "a\N{REPLACEMENT CHARACTER}b"
