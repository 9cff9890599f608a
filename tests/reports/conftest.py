"""Fixtures of the reports' tests."""

import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert

from worker.sql.database import open_database, writing
from worker.sql.reporting import Reports
from worker.sql.tables import AttemptRow, BatchRow, JobRow, JobStatsRow, ResultRow, WorkerHourRow, WorkerRow

END = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
TENANTS = ("acme", "globex", "<b>&amp;")
CODES = ("context_length", "deadline", "numerical_error")


@pytest.fixture(scope="module")
def filled_database(migrated_sqlite_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """240 jobs over 40 hours: two batches, three tenants, every twelfth failed; a worker with a price."""
    path = shutil.copy(migrated_sqlite_file, tmp_path_factory.mktemp("filled"))
    engine = open_database(f"sqlite:///{path}")
    with writing(engine) as connection:
        connection.execute(insert(WorkerRow), [_worker()])
        connection.execute(insert(WorkerHourRow), [_worker_hour(number) for number in range(40)])
        connection.execute(insert(BatchRow), [{"id": name, "created_at": END} for name in ("monday", "tuesday")])
        rows = [_rows_of_job(number) for number in range(240)]
        for table, at in ((JobRow, 0), (AttemptRow, 1), (ResultRow, 2), (JobStatsRow, 3)):
            connection.execute(insert(table), [row[at] for row in rows if row[at]])
    yield engine
    engine.dispose()


@pytest.fixture
def filled(filled_database: Engine) -> Reports:
    """The reports of the filled database."""
    return Reports(filled_database)


def _rows_of_job(number: int) -> tuple[Mapping[str, object], ...]:
    """A job with its attempt, result and figures. Those of tuesday take half as long again."""
    job_id, failed, slow = f"job-{number:03}", number % 12 == 11, number >= 120
    ended_at = END - timedelta(minutes=10 * (240 - number))
    e2e_ms = (1_000.0 + 10 * (number % 120)) * (1.5 if slow else 1)
    error = {"error_code": CODES[number % 3] if failed else None, "error_message": "<i>why</i>" if failed else None}
    times = {"started_at": ended_at - timedelta(milliseconds=e2e_ms - 200), "ended_at": ended_at}
    job = {
        "id": job_id,
        "queue": "bulk" if number % 2 else "urgent",
        "tenant": TENANTS[number % 3],
        "model": "smollm2",
        "batch_id": "tuesday" if slow else "monday",
        "custom_id": f"=row{number}",
        "payload": "{}",
        "state": "failed" if failed else "done",
        "epoch": 1,
        "attempt_count": 1,
        "enqueued_at": ended_at - timedelta(milliseconds=e2e_ms),
        **times,
        **error,
    }
    milliseconds = dict(zip(PHASES, (2.0, 10.0, 300.0, e2e_ms - 210, e2e_ms - 200), strict=True))
    attempt = {
        "id": number + 1,
        "job_id": job_id,
        "epoch": 1,
        "worker_name": "w",
        "state": job["state"],
        **times,
        **error,
        "engine_seconds": 0.5,
        "wasted_engine_seconds": 0.5 if failed else 0.0,
        "kv_block_seconds_share": 3.0,
        "computed_tokens": 80,
        "recomputed_tokens": 5 if failed else 0,
        **milliseconds,
    }
    result = {
        "job_id": job_id,
        "attempt_id": number + 1,
        "text": "t",
        "token_ids": [1],
        "finish_reason": "stop",
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "created_at": ended_at,
    }
    stats = {
        "job_id": job_id,
        "queue_ms": 200.0,
        "tokenize_ms": 2.0,
        "ttft_ms": 300.0,
        "itl_mean_ms": 20.0,
        "itl_p99_ms": 40.0,
        "e2e_ms": e2e_ms,
        "kv_blocks_peak": 8,
        "kv_bytes_peak": 8 << 20,
        "kv_block_seconds": 6.0,
        "kv_blocks_limit": 16,
        "kv_block_seconds_limit": 12.0,
        "prefix_hit_tokens": 48,
        "preemptions": 0,
        "memory_peak_bytes": 2 << 30,
    }
    return job, attempt, {} if failed else result, stats


PHASES = ("tokenized_ms", "admitted_ms", "first_token_ms", "last_token_ms", "committed_ms")


def _worker_hour(number: int) -> dict[str, object]:
    """An hour of the worker, the first of them that before END."""
    spent = {"wall": 3600.0, "engine": 900.0, "wasted_engine": 60.0, "idle": 2500.0, "loading": 0.0, "overhead": 200.0}
    blocks = {"held": 1e5, "cached": 1e4, "free": 1e4}
    return {
        "worker_name": "w",
        "hour": END - timedelta(hours=number + 1),
        **{f"{name}_seconds": seconds for name, seconds in spent.items()},
        **{f"kv_block_seconds_{use}": seconds for use, seconds in blocks.items()},
        "computed_tokens": 480,
        "recomputed_tokens": 5,
    }


def _worker() -> dict[str, object]:
    return {
        "name": "w",
        "hostname": "h",
        "pid": 1,
        "model": "smollm2",
        "device": "cpu",
        "dtype": "float32",
        "block_size": 16,
        "num_blocks": 64,
        "bytes_per_block": 1 << 20,
        "pagemill_version": "0.1.0",
        "torch_version": "2",
        "transformers_version": "5",
        "started_at": END,
        "last_heartbeat_at": END,
        "jobs_done": 0,
        "jobs_failed": 0,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "prefix_hit_tokens": 0,
        "price_per_engine_hour": 3.6,
        "price_currency": "EUR",
    }
