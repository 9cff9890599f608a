"""The intake thread: tokenizes claimed jobs, in order, and hands them to the engine."""

import queue
import time
from collections.abc import Callable

from worker.engine_loop import Add
from worker.errors import InvalidJob
from worker.held import HeldJob
from worker.outcomes import OutcomeBuilder
from worker.records import Outcome
from worker.tokenizing import Tokenizer

MS = 1000.0


class Intake:
    """Between the claim and the engine. `emit` gets the jobs that are refused; `send` gets the others."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model_names: frozenset[str],
        outcomes: OutcomeBuilder,
        send: Callable[[Add], None],
        emit: Callable[[Outcome], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._model_names = model_names
        self._outcomes = outcomes
        self._send = send
        self._emit = emit
        self._jobs: queue.SimpleQueue[HeldJob | None] = queue.SimpleQueue()

    def put(self, job: HeldJob) -> None:
        """Take a job; returns at once."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Let `run` return after the jobs put so far."""
        self._jobs.put(None)

    def run(self) -> None:
        """Tokenize jobs until stopped."""
        while (job := self._jobs.get()) is not None:
            if job.cancel_requested.is_set():
                self._emit(self._outcomes.cancelled(job))
                continue
            started = time.perf_counter()
            try:
                self._check_model(job.claim.job.model)
                job.prompt = self._tokenizer.encode(job.claim.job)
            except InvalidJob as error:
                self._emit(self._outcomes.rejected(job, error))
                continue
            job.tokenize_ms = (time.perf_counter() - started) * MS
            self._send(Add(job))

    def _check_model(self, asked: str | None) -> None:
        if asked is not None and asked not in self._model_names:
            raise InvalidJob(
                "model", f"{asked!r} is not served here; this worker serves {min(self._model_names)!r}", code="model"
            )
