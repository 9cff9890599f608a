"""The worker service: one model, one engine, one RQ worker and the threads between them."""

import importlib.metadata
import logging
import os
import socket
import sys
import threading
import time
from uuid import uuid4

import torch
import transformers
from transformers.utils.logging import disable_progress_bar

from engine.config import EngineConfig
from engine.engine import Engine
from engine.memory import peak_memory_bytes, spare_kv_bytes
from engine.model_loader import LoadedModel, ModelNotFound, choose_device, choose_dtype, load_model
from engine.model_runner import ModelRunner
from engine.paged_model import UnsupportedModel
from worker import schema
from worker.beats import Heart
from worker.claiming import Claimer
from worker.connection import connect
from worker.database import open_database
from worker.engine_loop import Abort, EngineLoop, Stop
from worker.errors import ConfigurationError, ServiceUnavailable, TryLater
from worker.fleet import WorkerRecord
from worker.held import HeldJobs
from worker.intake import Intake
from worker.live import Live
from worker.outcomes import OutcomeBuilder
from worker.persister import Persister
from worker.progress import Panel, WorkerProgress
from worker.queue import JobQueue
from worker.rq_worker import Drain, PagemillWorker
from worker.settings import Settings
from worker.store import JobStore
from worker.tables import utc_now
from worker.threads import Failure, ServiceThread
from worker.tokenizing import Tokenizer

CPU_TOKEN_BUDGET = 512
CUDA_TOKEN_BUDGET = 8192
HAND_BACK_SECONDS = 10.0  # to persist what is finished and requeue the rest, services permitting

logger = logging.getLogger(__name__)


class Service:
    """Builds everything at construction and runs once. Raises ConfigurationError or ServiceUnavailable, in one line."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connection = connect(settings.queue_url(), settings.data_dir)
        schema.check(settings.sql_url())
        self._store = JobStore(open_database(settings.sql_url()))
        loaded = _load(settings)
        self._device = loaded.model.device
        self._config = _engine_config(settings, loaded)
        tokenizer = Tokenizer(loaded.folder)
        runner = ModelRunner(loaded.model, self._config.num_blocks, self._config.block_size)
        engine = Engine(self._config, runner, loaded.identity, tokenizer.decode)
        name = f"pagemill-{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        kv_shape = runner.cache.shape
        self._record = WorkerRecord(
            name=name,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            model=loaded.identity.name,
            device=str(self._device),
            dtype=str(loaded.model.dtype).removeprefix("torch."),
            block_size=self._config.block_size,
            num_blocks=self._config.num_blocks,
            bytes_per_block=kv_shape.bytes_per_block,
            pagemill_version=importlib.metadata.version("pagemill"),
            torch_version=torch.__version__,
            transformers_version=transformers.__version__,
            started_at=utc_now(),
        )
        self._worker = PagemillWorker(list(settings.queues), name=name, connection=self._connection)
        self._held = HeldJobs(settings.max_jobs)
        self._failure = Failure()
        self._give_up = threading.Event()
        self._queue = job_queue = JobQueue(
            self._connection, name, settings.lease_seconds, default_result_ttl_seconds=settings.result_ttl_seconds
        )
        outcomes = OutcomeBuilder(
            tokenizer.decode, kv_shape.bytes_per_block, lambda: peak_memory_bytes(self._device), time.monotonic
        )
        self._outcomes = outcomes
        self._persister = Persister(self._store, job_queue, self._held, outcomes, self._give_up)
        self._loop = EngineLoop(engine, outcomes, self._persister.put)
        names = frozenset({loaded.identity.name, settings.model or ""}) - {""}
        self._intake = Intake(tokenizer, names, outcomes, self._loop.send, self._persister.put)
        self._heart = Heart(job_queue, self._held, settings.beat_seconds, self._beat, self._lose)
        self._live = Live(job_queue, self._held, tokenizer.decode, self._cancel)
        self._drain = Drain(
            Claimer(job_queue, self._store, self._held, settings.queues, self._intake.put, self._worker.stopping),
            self._held,
            self._failure,
            settings.sweep_seconds,
            self._cancel,
        )

    @property
    def name(self) -> str:
        return self._record.name

    def progress(self) -> WorkerProgress:
        """Return the state now; from any thread. Raises ServiceUnavailable when Redis is down."""
        status, counters = self._loop.engine.status(), self._persister.counters
        return WorkerProgress(
            waiting=self._queue.depth(self._settings.queues),
            held=len(self._held),
            running=status.num_running,
            jobs_done=counters.jobs_done,
            jobs_failed=counters.jobs_failed,
            completion_tokens=counters.completion_tokens,
            blocks_held=status.blocks_held,
            blocks_cached=status.blocks_cached,
            num_blocks=status.num_blocks,
        )

    def run(self, *, burst: bool) -> None:
        """Drain the queues until a signal, or in a burst until they are empty. On the main thread.

        Raises TryLater when a thread died; what was held has been handed back then.
        """
        self._store.register_worker(self._record)
        self._worker.register()
        logger.info("worker %s drains %s", self.name, ", ".join(self._settings.queues))
        targets = {
            "intake": self._intake.run,
            "engine": self._loop.run,
            "persister": self._persister.run,
            "heart": self._heart.run,
            "live": self._live.run,
        }
        threads = {name: ServiceThread(name, target, self._failure) for name, target in targets.items()}
        for thread in threads.values():
            thread.start()
        try:
            self._worker.drain_queues(self._drain, burst=burst)
            self._worker.finish_held(self._drain, self._settings.drain_seconds)
        finally:
            self._shut_down(threads)
        if self._failure.error is not None:
            raise TryLater(f"worker stopped, its jobs are queued again: {self._failure.error}") from self._failure.error

    def _shut_down(self, threads: dict[str, ServiceThread]) -> None:
        """Stop the threads in the direction of the flow, so that each job is finished or handed back, and only once."""
        self._intake.stop()
        threads["intake"].join()
        self._loop.send(Stop())
        threads["engine"].join()
        unfinished = self._held.unfinished()
        if unfinished:
            logger.info("handing back %d jobs", len(unfinished))
        for job in unfinished:
            self._persister.put(self._outcomes.handed_back(job))
        self._persister.stop()
        threads["persister"].join(HAND_BACK_SECONDS)
        self._give_up.set()
        self._live.stop()
        self._heart.stop()
        for thread in threads.values():
            thread.join()
        self._worker.unregister()
        try:
            self._store.stop_worker(self.name)
        except ServiceUnavailable as error:
            logger.warning("cannot unregister: %s", error)

    def _beat(self) -> None:
        self._worker.beat()
        self._store.heartbeat_worker(self.name, self._persister.counters)

    def _cancel(self, job_id: str) -> None:
        job = self._held.get(job_id)
        if job is not None:
            job.cancel_requested.set()
            self._loop.send(Abort(job_id))

    def _lose(self, job_id: str) -> None:
        """Stop computing a job that somebody else holds now. Its outcome is fenced in SQL and stale in Redis."""
        self._cancel(job_id)


def _load(settings: Settings) -> LoadedModel:
    if settings.model is None:
        raise ConfigurationError("model: is not set; name a hub id, a local folder or a GGUF file (PAGEMILL_MODEL)")
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    if not sys.stderr.isatty():
        disable_progress_bar()
    started = time.monotonic()
    try:
        loaded = load_model(settings.model, dtype=dtype, device=device, cache_dir=settings.data_dir / "models")
    except ModelNotFound as error:
        raise ConfigurationError(f"model: {error}") from error
    except UnsupportedModel as error:
        raise ConfigurationError(f"model: {settings.model!r} is not supported: {error}") from error
    logger.info("loaded %s in %s on %s in %.1f s", settings.model, dtype, device, time.monotonic() - started)
    return loaded


def _engine_config(settings: Settings, loaded: LoadedModel) -> EngineConfig:
    """Size the engine. Raises ConfigurationError when the KV cache could not hold a single sequence's start."""
    model = loaded.model
    max_model_len = min(settings.max_model_len or model.max_model_len, model.max_model_len)
    bytes_per_block = model.kv_shape(settings.block_size).bytes_per_block
    kv_bytes = settings.kv_memory_bytes or spare_kv_bytes(model.device)
    # More than every sequence at its longest would never be used.
    most = settings.max_num_seqs * -(-max_model_len // settings.block_size)
    num_blocks = min(kv_bytes // bytes_per_block, most)
    if num_blocks < 1:
        raise ConfigurationError(f"kv_memory_bytes: {kv_bytes} is less than one block of {bytes_per_block} bytes")
    budget = CPU_TOKEN_BUDGET if model.device.type == "cpu" else CUDA_TOKEN_BUDGET
    try:
        return EngineConfig(
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            block_size=settings.block_size,
            max_num_seqs=settings.max_num_seqs,
            token_budget=settings.token_budget or max(budget, settings.max_num_seqs),
            enable_prefix_caching=settings.enable_prefix_caching,
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def run_worker(settings: Settings, *, burst: bool, panel: Panel) -> None:
    """Run a worker in this process until a signal or, in a burst, until the queues are empty.

    Raises ConfigurationError, ServiceUnavailable, or TryLater when the engine died; its jobs are handed back then.
    """
    service = Service(settings)
    with panel(service.progress):
        service.run(burst=burst)
