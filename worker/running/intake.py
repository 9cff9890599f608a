"""The intake thread: tokenizes claimed jobs, in order, and hands them to the engine."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from engine.grammar import Grammar
from worker.errors import InvalidJob
from worker.inputs import filled
from worker.jobs import PromptJob
from worker.log_fields import about, at_hand
from worker.model_shape import short_name
from worker.records import Outcome
from worker.running.crash_journal import Journal
from worker.running.engine_loop import Add
from worker.running.held import HeldJob
from worker.running.outcomes import OutcomeBuilder
from worker.running.usage import MS

CompileGrammars = Callable[[PromptJob], Sequence[Grammar | None]]  # one an output; InvalidJob: it cannot be followed
Encode = Callable[[PromptJob], list[int]]  # raises InvalidJob for a job that cannot be put into tokens

logger = logging.getLogger(__name__)


class Intake:
    """Between the claim and the engine. `emit` gets the jobs that are refused; `send` gets the others."""

    def __init__(
        self,
        encode: Encode,
        compile_grammars: CompileGrammars,
        model_names: frozenset[str],
        outcomes: OutcomeBuilder,
        send: Callable[[Add], None],
        emit: Callable[[Outcome], None],
        journal: Journal,
    ) -> None:
        self._encode = encode
        self._compile_grammars = compile_grammars
        self._model_names = model_names
        self._outcomes = outcomes
        self._send = send
        self._emit = emit
        self._journal = journal
        self._jobs: queue.SimpleQueue[HeldJob | None] = queue.SimpleQueue()
        self._stopped = threading.Event()

    def put(self, job: HeldJob) -> None:
        """Take a job; returns at once."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Let `run` return after the job at hand; the others stay held, without an outcome."""
        self._stopped.set()
        self._jobs.put(None)

    def run(self) -> None:
        """Tokenize jobs until stopped."""
        while (job := self._jobs.get()) is not None and not self._stopped.is_set():
            self._take(job)

    def _take(self, job: HeldJob) -> None:
        job.check_deadline(time.monotonic())
        if job.must_end:
            self._emit(self._outcomes.ended_early(job))
            return
        started = time.perf_counter()
        try:
            self._check_model(job.claim.job.model)
            with self._journal.aside(job.claim.execution_id), at_hand(about(job.claim)):
                job.prompt = self._encode(filled(job.claim.job, job.inputs))
                job.grammars = self._compile_grammars(job.claim.job)
        except InvalidJob as error:
            self._emit(self._outcomes.rejected(job, error))
        except Exception as error:  # a tokenizer's or a template's bug: this job's end, not the worker's
            logger.exception("job %s could not be tokenized", job.claim.job_id, extra=about(job.claim))
            self._emit(self._outcomes.broken(job, error))
        else:
            job.tokenize_ms = (time.perf_counter() - started) * MS
            job.tokenized_at = time.monotonic()
            self._send(Add(job))

    def _check_model(self, asked: str | None) -> None:
        if asked is not None and asked not in self._model_names:
            served = " or ".join(map(repr, sorted({short_name(name) for name in self._model_names})))
            raise InvalidJob(
                "model", f"{asked!r} is not served here; this worker serves {served}", code="model_not_served"
            )
