"""What the workers can take: their KV caches may be smaller than the model's context."""

from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import Engine

from worker.rag.model import RagModel
from worker.settings_model import Settings
from worker.sql.fleet import WorkerRecord
from worker.sql.store import JobStore
from worker.worker_state import running_workers


def within_workers(model: RagModel, database: Engine, settings: Settings) -> RagModel:
    """Return the model with no more context than every running worker that serves it has room for in its KV cache, as
    its row in SQL says; any of them may get a job. Where none runs, the model's own. Raises ServiceUnavailable."""
    workers = running_workers(JobStore(database).workers(), datetime.now(UTC), settings)
    rooms = [(_room(worker.record), worker.record.name) for worker in workers if worker.record.model == model.name]
    room, name = min(rooms, default=(model.max_model_len, ""))
    if room >= model.max_model_len:
        return model
    return replace(model, max_model_len=room, limited_by=f"the KV cache of worker {name}")


def _room(record: WorkerRecord) -> int:
    """Return the tokens of the longest sequence that a worker has room for; of an older one's row, as if none of its
    model's layers had a window."""
    return record.num_blocks * record.block_size if record.longest_sequence is None else record.longest_sequence
