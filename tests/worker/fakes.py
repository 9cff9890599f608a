"""A worker without torch: real queue, real SQL, real engine core; the model answers from a script, a byte a token."""

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine, ModelIdentity
from engine.grammar import Grammar
from engine.offload_policy import CopyTime
from engine.speculation.speculator import Speculator
from engine.step_plan import Computed, Launched, Sampled, SchedulerOutput
from worker.jobs import PromptJob, num_outputs
from worker.running.crash_journal import Journal, JournaledRunner, NoJournal
from worker.running.flow import Flow, ServedModel
from worker.settings_model import Settings
from worker.sql.fleet import WorkerRecord
from worker.sql.store import JobStore
from worker.sql.tables import utc_now

EOS = 256
CONFIG = EngineConfig(num_blocks=4096, max_model_len=16_384, block_size=16, max_num_seqs=64, token_budget=512)
MODEL = ModelIdentity(name="scripted", vocab_size=257, stop_token_ids=frozenset({EOS}))
ENDLESS = "endless"  # a prompt that begins so is answered until max_tokens
BYTES_PER_BLOCK = 1024
WAIT_SECONDS = 30.0  # far above what anything here takes


class ScriptError(Exception):
    """What a scripted part raises when told to."""


def encode(job: PromptJob) -> list[int]:
    """Return a prompt's bytes."""
    assert job.prompt is not None
    return list(job.prompt.encode())


def confine_nothing(job: PromptJob) -> Sequence[Grammar | None]:
    """Return that no output of a job is confined."""
    return (None,) * num_outputs(job)


def decode(token_ids: Sequence[int]) -> str:
    """Return the text of bytes; an incomplete character gives U+FFFD, as with a real tokenizer."""
    return bytes(token for token in token_ids if token != EOS).decode("utf-8", "replace")


def answer(prompt: str) -> str:
    """Return what the scripted model says."""
    return f"<{prompt}>"


@dataclass
class ScriptedRunner:
    """The model: answers each prompt from its script. Tests pause it, slow it down and make it fail."""

    reply: Callable[[str], str] = answer
    step_seconds: float = 0.0
    num_failures: int = 0  # steps to come that raise
    steps: int = 0
    generations: Counter[str] = field(default_factory=Counter)  # prompt -> times it was begun
    order: list[str] = field(default_factory=list)  # prompts, as they were begun
    may_step: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_step.set()

    def launch(self, plan: SchedulerOutput) -> Launched:
        return Computed(self.run(plan))

    def run(self, plan: SchedulerOutput) -> Mapping[str, Sampled]:
        assert self.may_step.wait(WAIT_SECONDS), "the test forgot the model"
        time.sleep(self.step_seconds)
        self.steps += 1
        if self.num_failures:
            self.num_failures -= 1
            raise ScriptError("the device is on fire")
        results: dict[str, Sampled] = {}
        for share in plan.scheduled:
            request = share.request
            prompt = decode(request.token_ids[: request.num_prompt_tokens])
            if share.samples:
                position = share.num_computed_tokens + share.num_known_tokens - request.num_prompt_tokens
                if not position:
                    self.generations[prompt] += 1
                    self.order.append(prompt)
                results[request.request_id] = self._run_of(prompt, position, share.draft)
        return results

    def probe(self) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise ScriptError("the device is on fire")

    def take_copy_times(self) -> Sequence[CopyTime]:
        return ()

    def scrub(self, block_ids: list[int]) -> None:
        pass

    def _run_of(self, prompt: str, position: int, draft: Sequence[int]) -> tuple[int, ...]:
        """Return the next token, and one more for each drafted token that is right."""
        tokens = [self._next(prompt, position)]
        for drafted in draft:
            if drafted != tokens[-1]:
                break
            tokens.append(self._next(prompt, position + len(tokens)))
        return tuple(tokens)

    def _next(self, prompt: str, position: int) -> int:
        if prompt.startswith(ENDLESS):
            return ord("0123456789"[position % 10])
        script = self.reply(prompt).encode()
        return script[position] if position < len(script) else EOS


def make_flow(
    connection: redis.Redis,
    store: JobStore,
    runner: ScriptedRunner | None = None,
    *,
    name: str = "worker-1",
    encode: Callable[[PromptJob], list[int]] = encode,
    decode: Callable[[Sequence[int]], str] = decode,
    config: EngineConfig = CONFIG,
    journal: Journal | None = None,
    speculator: Speculator | None = None,
    **settings: Any,
) -> Flow:
    """Return a worker that has not started. `settings` are those of `worker.settings`."""
    journal = journal or NoJournal()
    detokenize = Detokenizer(decode)
    engine = Engine(
        config, JournaledRunner(runner or ScriptedRunner(), journal), MODEL, detokenize, speculator=speculator
    )
    served = frozenset({MODEL.name})
    model = ServedModel(engine, encode, confine_nothing, detokenize, served, BYTES_PER_BLOCK, lambda: 1 << 20)
    record = WorkerRecord(
        name=name,
        hostname="host",
        pid=1,
        model=MODEL.name,
        device="cpu",
        dtype="none",
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        bytes_per_block=BYTES_PER_BLOCK,
        pagemill_version="0",
        torch_version="0",
        transformers_version="0",
        started_at=utc_now(),
    )
    settings = {"retry_base_seconds": 0.01, **settings}
    return Flow(Settings(data_dir=Path("unused"), **settings), connection, store, model, record, journal)


@dataclass
class Running:
    """A worker that runs in a thread of the test."""

    flow: Flow
    thread: threading.Thread
    errors: list[Exception]

    def stop(self) -> None:
        """Tell the worker to drain, and wait for its end. Raises what it raised."""
        self.flow.worker.stopping.set()
        self.wait()

    def stop_at_once(self) -> None:
        """Tell the worker to hand back, and wait for its end. Raises what it raised."""
        self.flow.worker.handing_back.set()
        self.stop()

    def wait(self) -> None:
        """Wait for the worker's end. Raises what it raised."""
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive(), "the worker does not end"
        if self.errors:
            raise self.errors[0]


@contextmanager
def running(flow: Flow, *, burst: bool = False) -> Iterator[Running]:
    """Run a worker until the block ends; it is told to hand back then, if it has not ended."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            flow.run(burst=burst)
        except Exception as error:
            errors.append(error)

    worker = Running(flow, threading.Thread(target=run, name=flow.worker.name), errors)
    worker.thread.start()
    try:
        yield worker
    finally:
        flow.worker.stopping.set()
        flow.worker.handing_back.set()
        worker.thread.join(WAIT_SECONDS)
    assert not worker.thread.is_alive(), "the worker does not end"


@contextmanager
def sql_outage(path: Path) -> Iterator[None]:
    """Hold the lock of an SQLite file: nothing can be written until the block ends."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=WAIT_SECONDS)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


def eventually(condition: Callable[[], object], what: str = "the condition holds") -> None:
    """Wait until `condition` returns something true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited for {WAIT_SECONDS:g} s until {what}"
        time.sleep(0.01)
