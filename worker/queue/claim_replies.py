"""What a claim brings: a script's reply, read into jobs, plain functions, and records that are neither."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from worker.jobs import seed_of
from worker.queue.crashes import GUILTY_CRASHES, POISON, Diagnosis, read_crashes, summary
from worker.queue.queue_records import Fields, FunctionRecord, PromptRecord, RecordError, raw_json, read_date
from worker.records import Claim, DeadRecord, FunctionClaim
from worker.trace_context import named_trace

ReadRecord = Callable[[Fields], PromptRecord | FunctionRecord]  # raises RecordError for a record of neither kind


@dataclass(frozen=True, slots=True)
class Claimed:
    """What came out of the queue."""

    claims: tuple[Claim, ...]
    dead: tuple[DeadRecord, ...]
    num_parked: int = 0  # given back at once: their tenants are at their limits
    functions: tuple[FunctionClaim, ...] = ()

    @property
    def num_records(self) -> int:
        """How many records left their queues."""
        return len(self.claims) + len(self.dead) + len(self.functions) + self.num_parked


def read_reply(reply: Sequence[Sequence[Any]], read: ReadRecord) -> Claimed:
    """Read the reply of a script that claims; `read` tells a record's kind."""
    found = [
        _read_buried(*record) if kind == b"buried" else _read_claim(kind, *record, read=read) for kind, *record in reply
    ]
    return Claimed(
        claims=tuple(record for record in found if isinstance(record, Claim)),
        dead=tuple(record for record in found if isinstance(record, DeadRecord)),
        functions=tuple(record for record in found if isinstance(record, FunctionClaim)),
    )


def dead_record(job_id: str, queue: str, error: RecordError, fields: Fields) -> DeadRecord:
    """Return what is kept of a record that is none of the kinds that run here."""
    enqueued_at = read_date(fields.get(b"enqueued_at", b""))
    return DeadRecord(job_id, queue, error.code, str(error), raw_json(fields), enqueued_at)


def _read_claim(
    kind: bytes,
    job_id: bytes,
    execution_id: bytes,
    epoch: bytes,
    now_us: bytes,
    queue: bytes,
    flat: Sequence[bytes],
    *,
    read: ReadRecord,
) -> Claim | FunctionClaim | DeadRecord:
    fields: Fields = dict(zip(flat[::2], flat[1::2], strict=True))
    try:
        record = read(fields)
    except RecordError as error:
        return dead_record(job_id.decode(), queue.decode(), error, fields)
    if fields.get(b"pagemill_crashes") == GUILTY_CRASHES:
        return _read_guilty(job_id.decode(), queue.decode(), record, fields)
    now = datetime.fromtimestamp(int(now_us) / 1e6, UTC)
    claimed_at = (read_date(fields.get(b"started_at", b"")) if kind == b"recovered" else None) or now
    if isinstance(record, FunctionRecord):
        return FunctionClaim(job_id.decode(), execution_id.decode(), int(epoch), queue.decode(), fields, claimed_at)
    return Claim(
        job_id=job_id.decode(),
        execution_id=execution_id.decode(),
        epoch=int(epoch),
        queue=queue.decode(),
        job=record.job,
        payload_json=record.payload_json,
        enqueued_at=record.enqueued_at,
        claimed_at=claimed_at,
        age_seconds=max(0.0, (now - claimed_at).total_seconds()),
        retries=record.retries,
        timeout_seconds=record.timeout_seconds,
        rq_traceparent=record.traceparent,
    )


def _read_guilty(job_id: str, queue: str, record: PromptRecord | FunctionRecord, fields: Fields) -> DeadRecord:
    crashes = read_crashes(fields.get(b"pagemill_crash_log", b""))
    if isinstance(record, FunctionRecord):
        return dead_record(job_id, queue, RecordError(POISON, summary(crashes)), fields)
    diagnosis = Diagnosis(json.loads(record.payload_json), seed_of(record.job, job_id), crashes)
    return DeadRecord(
        job_id,
        queue,
        POISON,
        diagnosis.summary(),
        record.payload_json,
        record.enqueued_at,
        diagnosis,
        named_trace(record.job, record.traceparent),
    )


def _read_buried(job_id: bytes, queue: bytes, reason: bytes, raw: bytes) -> DeadRecord:
    return DeadRecord(job_id.decode(), queue.decode(), "corrupt_record", reason.decode(), raw.decode(), None)
