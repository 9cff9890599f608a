"""The engine's thread: takes requests from the intake, steps, hands finished jobs on. It waits for nothing else."""

import hashlib
import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass

from engine.engine import Engine
from engine.request import Request, RequestError, SamplingParams
from worker.held import HeldJob
from worker.jobs import PromptJob
from worker.outcomes import OutcomeBuilder
from worker.records import Outcome

MAX_FAILED_STEPS = 3  # in a row, before the engine is given up

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Add:
    """Serve this tokenized job."""

    job: HeldJob


@dataclass(frozen=True, slots=True)
class Abort:
    """End this job as cancelled, if the engine has it."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the loop after this, whatever runs."""


Command = Add | Abort | Stop


class EngineStepFailed(Exception):
    """The model failed several steps in a row."""


class EngineLoop:
    """Owns the engine. `emit` gets each job that finished or that the engine refuses; it must not block."""

    def __init__(self, engine: Engine, outcomes: OutcomeBuilder, emit: Callable[[HeldJob | Outcome], None]) -> None:
        self.engine = engine
        self._outcomes = outcomes
        self._emit = emit
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._jobs: dict[str, HeldJob] = {}
        self._failed_steps = 0

    def send(self, command: Command) -> None:
        """Hand the loop a command; returns at once. From any thread."""
        self._commands.put(command)

    def run(self) -> None:
        """Step while there is work and wait for commands while there is none, until Stop.

        Raises EngineStepFailed when `MAX_FAILED_STEPS` steps in a row raise; what was running is then still held.
        """
        while True:
            idle = not self.engine.has_work
            for command in self._drain(wait=idle):
                if isinstance(command, Stop):
                    return
                self._execute(command)
            self._step()

    def _drain(self, *, wait: bool) -> list[Command]:
        commands = [self._commands.get()] if wait else []
        while True:
            try:
                commands.append(self._commands.get_nowait())
            except queue.Empty:
                return commands

    def _execute(self, command: Add | Abort) -> None:
        if isinstance(command, Abort):
            request = self.engine.abort(command.job_id)
            if request is not None:
                self._finish(request)
            return
        job = command.job
        payload = job.claim.job
        if job.cancel_requested.is_set():
            self._emit(self._outcomes.cancelled(job))
            return
        try:
            params = sampling_params(payload, job.claim.job_id)
            job.request = self.engine.add(job.claim.job_id, job.prompt, params, tenant=payload.tenant)
        except RequestError as error:
            self._emit(self._outcomes.rejected(job, error))
        else:
            self._jobs[job.claim.job_id] = job

    def _step(self) -> None:
        try:
            finished = self.engine.step()
        except Exception as error:
            self._failed_steps += 1
            logger.exception("step failed, %d in a row; its requests start over", self._failed_steps)
            if self._failed_steps >= MAX_FAILED_STEPS:
                raise EngineStepFailed(f"{self._failed_steps} steps in a row failed: {error}") from error
            return
        self._failed_steps = 0
        for request in finished:
            self._finish(request)

    def _finish(self, request: Request) -> None:
        self._emit(self._jobs.pop(request.request_id))


def sampling_params(job: PromptJob, job_id: str) -> SamplingParams:
    """Return the engine's parameters of a job; without a seed, one that every attempt at the job shares."""
    digest = hashlib.sha256(job_id.encode()).digest()
    return SamplingParams(
        max_tokens=job.max_tokens,
        min_tokens=job.min_tokens,
        temperature=job.temperature,
        top_k=job.top_k,
        top_p=job.top_p,
        min_p=job.min_p,
        seed=int.from_bytes(digest[:8], "big") >> 1 if job.seed is None else job.seed,
        stop=job.stop,
        stop_token_ids=frozenset(job.stop_token_ids),
        ignore_eos=job.ignore_eos,
    )
