"""What the workers can take: their KV caches may be smaller than the model's context."""

from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import Engine

from worker.rag.model import RagModel
from worker.settings_model import Settings
from worker.sql.store import JobStore
from worker.worker_state import running_workers


def within_workers(model: RagModel, database: Engine, settings: Settings) -> RagModel:
    """Return the model with no more context than every running worker that serves it has room for in its KV cache, as
    its row in SQL says; any of them may get a job. Where none runs, the model's own. Raises ServiceUnavailable."""
    workers = running_workers(JobStore(database).workers(), datetime.now(UTC), settings)
    rooms = [
        (worker.record.num_blocks * worker.record.block_size, worker.record.name)
        for worker in workers
        if worker.record.model == model.name
    ]
    room, name = min(rooms, default=(model.max_model_len, ""))
    if room >= model.max_model_len:
        return model
    return replace(model, max_model_len=room, limited_by=f"the KV cache of worker {name}")
