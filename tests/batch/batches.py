"""Batches made of files, for tests that care about a few of their fields."""

from collections.abc import Sequence
from dataclasses import replace

from tests.sql.builders import after, claim_of, outcome_of, worker_of
from worker.batch.records import BatchFile, job_id_of
from worker.batch.store import BatchStore
from worker.openai_api.fields import Endpoint
from worker.records import AttemptState
from worker.sql.store import JobStore

BATCH = "batch_0123456789abcdef01234567"


def batch_of(batch_id: str = BATCH, **fields: object) -> BatchFile:
    plain = BatchFile(batch_id=batch_id, tenant="acme", queue="bulk", input_name="in.jsonl", created_at=after(0))
    return replace(plain, **fields)  # type: ignore[arg-type]


def begin(batches: BatchStore, lines: Sequence[int], batch: BatchFile | None = None, num_faults: int = 0) -> None:
    """Make a batch whose jobs run."""
    made = batches.create(batch or batch_of())
    batches.validated(made.batch_id, Endpoint.CHAT, len(lines) + num_faults, num_faults)
    claims = [claim_of(job_id_of(made.batch_id, line), batch_id=made.batch_id, custom_id=f"c{line}") for line in lines]
    jobs = JobStore(batches.engine)
    jobs.register_worker(worker_of("w"))
    jobs.begin_attempts(claims, "w")
    batches.submitted(made.batch_id)


def end(batches: BatchStore, line: int, state: AttemptState = AttemptState.DONE, **changes: object) -> None:
    claim = claim_of(job_id_of(BATCH, line), batch_id=BATCH)
    JobStore(batches.engine).finish_attempts([outcome_of(claim, state, at_s=20.0 + line, **changes)])
