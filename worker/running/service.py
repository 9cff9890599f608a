"""The worker service: a model is loaded, and jobs flow through it."""

import importlib.metadata
import logging
import os
import socket
import sys
import time
from uuid import uuid4

import redis
import torch
import transformers
from transformers.utils.logging import disable_progress_bar

from engine.attention_layers import UnsupportedModel
from engine.detokenizing import Detokenizer
from engine.engine import Engine
from engine.linears import Numerics, Weights
from engine.memory import peak_memory_bytes
from engine.model_loader import LoadedModel, ModelNotFound, choose_device, choose_dtype, load_model
from engine.model_runner import ModelRunner
from engine.stepping import Runner
from worker.errors import ConfigurationError
from worker.log_fields import naming_worker
from worker.model_shape import short_name
from worker.progress import Panel
from worker.queue.connection import connect
from worker.queue.redis_url import describe_url
from worker.running.crash_journal import Journal, JournaledRunner, journaling
from worker.running.failing_runner import FailingRunner
from worker.running.failpoints import Point, parse_faults
from worker.running.flow import Flow, ServedModel
from worker.running.process_start import process_start
from worker.running.sizing import engine_config, kv_dtype_of
from worker.running.speculating import check_vocabularies, speculation
from worker.running.tokenizing import Tokenizer
from worker.settings_model import Settings
from worker.sql import schema
from worker.sql.database import open_database
from worker.sql.fleet import WorkerRecord
from worker.sql.store import JobStore
from worker.sql.tables import utc_now

logger = logging.getLogger(__name__)


def run_worker(settings: Settings, *, burst: bool, panel: Panel) -> None:
    """Run a worker in this process until a signal or, in a burst, until the queues are empty. On the main thread.

    Raises ConfigurationError, ServiceUnavailable, or TryLater when a part of the worker failed; its jobs are handed
    back then.
    """
    connection = connect(settings.queue_url(), settings.data_dir)
    database = open_database(settings.sql_url())
    name = f"pagemill-{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    try:
        schema.check(settings.sql_url())
        with (
            naming_worker(name),
            journaling(settings.data_dir, name, describe_url(settings.queue_url() or "")) as journal,
        ):
            flow = _build_flow(name, settings, connection, JobStore(database), journal, process_start())
            flow.worker.take_signals()
            with panel(flow.progress):
                flow.run(burst=burst)
    finally:
        database.dispose()
        connection.close()


def _build_flow(
    worker_name: str,
    settings: Settings,
    connection: redis.Redis,
    store: JobStore,
    journal: Journal,
    began: float,
) -> Flow:
    loaded = _load(settings, "model", settings.model)
    draft = None if settings.draft_model is None else _load(settings, "draft_model", settings.draft_model)
    if draft is not None:
        check_vocabularies(draft, loaded)
    config = engine_config(settings, loaded.model, None if draft is None else draft.model)
    name = short_name(loaded.identity.name)
    tokenizer = Tokenizer(loaded.folder)
    detokenizer = tokenizer.detokenizer
    kv_dtype = kv_dtype_of(settings, loaded.model)
    runner = ModelRunner(
        loaded.model,
        config.num_blocks,
        config.block_size,
        kv_dtype,
        config.num_host_blocks,
        cuda_graphs=settings.cuda_graphs,
    )
    device, bytes_per_block = loaded.model.device, runner.cache.shape.bytes_per_block
    model = ServedModel(
        engine=Engine(
            config,
            _runner(settings, runner, detokenizer, journal),
            loaded.identity,
            detokenizer,
            speculator=speculation(settings, config, loaded, draft, lambda runner: JournaledRunner(runner, journal)),
        ),
        encode=tokenizer.encode,
        compile_grammars=tokenizer.grammars(loaded.identity.vocab_size, loaded.identity.stop_token_ids).compile,
        decode=detokenizer,
        names=frozenset({name, loaded.identity.name}),
        bytes_per_block=bytes_per_block,
        peak_memory_bytes=lambda: peak_memory_bytes(device),
    )
    record = WorkerRecord(
        name=worker_name,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        model=name,
        device=str(device),
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        bytes_per_block=bytes_per_block,
        pagemill_version=importlib.metadata.version("pagemill"),
        torch_version=torch.__version__,
        transformers_version=transformers.__version__,
        started_at=utc_now(),
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        kv_host_blocks=config.num_host_blocks,
        longest_sequence=config.longest_sequence,
        price_per_engine_hour=settings.price_per_engine_hour,
        price_currency=None if settings.price_per_engine_hour is None else settings.price_currency,
    )
    return Flow(settings, connection, store, model, record, journal, began)


def _runner(settings: Settings, runner: ModelRunner, detokenizer: Detokenizer, journal: Journal) -> Runner:
    """Return the runner behind the crash journal, and behind one that fails where failpoints ask for that."""
    faults = parse_faults(settings.failpoints)
    if faults:
        logger.warning("failpoints are set: this worker fails on purpose (%s)", settings.failpoints)
    is_to_fail = any(fault.point is Point.IN_STEP for fault in faults)
    return JournaledRunner(FailingRunner(runner, faults, detokenizer) if is_to_fail else runner, journal)


def _load(settings: Settings, field: str, source: str | None) -> LoadedModel:
    """Load the model that a setting names. Raises ConfigurationError."""
    if source is None:
        raise ConfigurationError("model: is not set; name a hub id, a local folder or a GGUF file (PAGEMILL_MODEL)")
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    numerics = Numerics(Weights(settings.weights), settings.batch_invariant)
    if not sys.stderr.isatty():
        disable_progress_bar()
    started = time.monotonic()
    try:
        loaded = load_model(
            source,
            dtype=dtype,
            device=device,
            cache_dir=settings.data_dir / "models",
            native_kernels=settings.native_kernels,
            numerics=numerics,
            max_model_len=settings.max_model_len,
        )
    except ModelNotFound as error:
        raise ConfigurationError(f"{field}: {error}") from error
    except UnsupportedModel as error:
        raise ConfigurationError(f"{field}: {source!r} is not supported: {error}") from error
    seconds, kernels = time.monotonic() - started, " with C kernels" if loaded.model.native else ""
    weights = "" if loaded.weights is None else f" ({loaded.weights})"
    logger.info("loaded %s%s in %s on %s%s in %.1f s", source, weights, dtype, device, kernels, seconds)
    return loaded
