"""The engine's thread: takes requests from the intake, steps, hands finished jobs on. It waits for nothing else."""

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.engine import Engine
from engine.forking import Output, prompt_id_of, seed_of_output
from engine.request import Request, RequestError, SamplingParams
from worker.jobs import PromptJob, num_outputs, seed_of
from worker.log_fields import about
from worker.metrics.step_log import Step, StepLog
from worker.records import Outcome
from worker.running.failpoints import Failpoints, Point
from worker.running.held import HeldJob
from worker.running.outcomes import OutcomeBuilder
from worker.running.pulse import Pulse

COMMON_TENANT = ""  # no job can have it: a tenant's name has at least one character

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Add:
    """Serve this tokenized job."""

    job: HeldJob


@dataclass(frozen=True, slots=True)
class Abort:
    """End the job of this execution, if the engine has it. Whoever sends it has set the job's flag that says why."""

    execution_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the loop after this, whatever runs."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Go round once, so that an idle loop shows that it answers."""


Command = Add | Abort | Ping | Stop


class EngineStepFailed(Exception):
    """The engine cannot go on in this process."""


class EngineLoop:
    """Owns the engine. `emit` gets each job that finished or that the engine refuses; it must not block.

    A request's id is its job's execution id: a job that is claimed again while the engine still has it is another
    request. Those of a job with several outputs add their index; such a job has finished when all of them have, and as
    soon as one fails.
    """

    def __init__(
        self,
        engine: Engine,
        outcomes: OutcomeBuilder,
        emit: Callable[[HeldJob | Outcome], None],
        failpoints: Failpoints,
        steps: StepLog,
    ) -> None:
        self.engine = engine
        self.pulse = Pulse()
        self._log = steps
        self._failpoints = failpoints
        self._outcomes = outcomes
        self._emit = emit
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._jobs: dict[str, HeldJob] = {}  # by execution id; those that the engine has
        self._deadlines: dict[str, float] = {}  # of those that have one; seconds on the monotonic clock

    def send(self, command: Command) -> None:
        """Hand the loop a command; returns at once. From any thread."""
        self._commands.put(command)

    def run(self) -> None:
        """Step while there is work and wait for commands while there is none, until Stop.

        Raises EngineStepFailed when the engine cannot go on; what was running is then still held. Whatever ends it, the
        figures of unfinished requests are settled: they have cost what they have cost.
        """
        self.engine.ledger.charge_loading()
        try:
            self._run()
        finally:
            self.engine.settle()
            for request in self.engine.take_ended():
                self._note_finished(request)

    def _run(self) -> None:
        while True:
            idle = not self.engine.has_work
            for command in self._drain(wait=idle):
                if isinstance(command, Stop):
                    return
                self._execute(command)
            self.pulse.note()
            self._expire()
            self._step()

    def _drain(self, *, wait: bool) -> list[Command]:
        commands = [self._wait()] if wait else []
        while True:
            try:
                commands.append(self._commands.get_nowait())
            except queue.Empty:
                return commands

    def _wait(self) -> Command:
        self.engine.ledger.charge_overhead()
        command = self._commands.get()
        self.engine.ledger.charge_idleness()
        return command

    def _expire(self) -> None:
        """End the jobs whose deadline has passed."""
        if not self._deadlines:
            return
        now = time.monotonic()
        for execution_id in [name for name, deadline in self._deadlines.items() if now >= deadline]:
            self._jobs[execution_id].expired = True
            self._abort(execution_id)

    def _abort(self, execution_id: str) -> None:
        job = self._jobs.get(execution_id)
        if job is not None:
            self._end_outputs(job)
            self._finish(job)

    def _end_outputs(self, job: HeldJob) -> None:
        """End what outputs of a job go on."""
        for request in job.outputs:
            self.engine.abort(request.request_id)

    def _execute(self, command: Add | Abort | Ping) -> None:
        if isinstance(command, Ping):
            return
        if isinstance(command, Abort):
            self._abort(command.execution_id)
            return
        command.job.check_deadline(time.monotonic())
        if command.job.must_end:
            self._emit(self._outcomes.ended_early(command.job))
        else:
            self._add(command.job)

    def _add(self, job: HeldJob) -> None:
        claim = job.claim
        try:
            room = self.engine.config.longest_sequence - len(job.prompt)
            job.outputs = self._add_outputs(job, sampling_params(claim.job, claim.job_id, room))
        except RequestError as error:
            self._emit(self._outcomes.rejected(job, error))
        except Exception as error:  # whatever it is, it is this job's: the engine has not stepped with it
            logger.exception("job %s could not be added", claim.job_id, extra=about(claim))
            self._emit(self._outcomes.broken(job, error))
        else:
            self._jobs[claim.execution_id] = job
            if job.deadline is not None:
                self._deadlines[claim.execution_id] = job.deadline

    def _add_outputs(self, job: HeldJob, params: SamplingParams) -> tuple[Request, ...]:
        claim, tenant = job.claim, cache_tenant(job.claim.job)
        if len(job.grammars) == 1:
            (grammar,) = job.grammars
            return (self.engine.add(claim.execution_id, job.prompt, params, tenant=tenant, grammar=grammar),)
        further = replace(params, prompt_logprobs=None)  # which are the first output's to note
        outputs = [
            Output(replace(further if index else params, seed=seed_of_output(params.seed, index)), grammar)
            for index, grammar in enumerate(job.grammars)
        ]
        return self.engine.add_group(claim.execution_id, job.prompt, outputs, tenant=tenant)

    def _step(self) -> None:
        if not self.engine.has_work:
            return
        try:
            self._failpoints.reach(Point.BEFORE_STEP)
            started = time.perf_counter()
            finished = self.engine.step()
            self._note_step(time.perf_counter() - started)
            self._failpoints.reach(Point.AFTER_STEP)
        except Exception as error:
            raise EngineStepFailed(str(error)) from error
        for request in finished:
            self._note_finished(request)

    def _note_step(self, seconds: float) -> None:
        size = self.engine.last_step
        if size is not None:
            self._log.note(Step(seconds, size.num_requests, size.num_tokens))

    def _note_finished(self, request: Request) -> None:
        job = self._jobs.get(prompt_id_of(request.request_id))
        if job is None:  # another of its outputs failed in the same step
            return
        if request.error is not None:
            self._end_outputs(job)
        if all(output.finish_reason is not None for output in job.outputs):
            self._finish(job)

    def _finish(self, job: HeldJob) -> None:
        execution_id = job.claim.execution_id
        self._deadlines.pop(execution_id, None)
        del self._jobs[execution_id]
        self._emit(job)


def cache_tenant(job: PromptJob) -> str:
    """Return whose prefix cache a job reads and fills: its tenant's, or the common one where it asks for that."""
    return COMMON_TENANT if job.share_prefix else job.tenant


def sampling_params(job: PromptJob, job_id: str, room: int) -> SamplingParams:
    """Return the engine's parameters of a job; without a seed, one that every attempt at the job shares.

    `room` is what the prompt leaves of the context, in tokens: a job without `max_tokens` may have it all. Where
    nothing is left it asks for one token, which the engine refuses with both numbers.
    """
    return SamplingParams(
        max_tokens=max(1, room) if job.max_tokens is None else job.max_tokens,
        min_tokens=job.min_tokens,
        temperature=job.temperature,
        top_k=job.top_k,
        top_p=job.top_p,
        min_p=job.min_p,
        presence_penalty=job.presence_penalty,
        frequency_penalty=job.frequency_penalty,
        repetition_penalty=job.repetition_penalty,
        logit_bias=tuple((int(token), bias) for token, bias in job.logit_bias.items()),
        logprobs=job.top_logprobs if job.logprobs else 0 if num_outputs(job) > job.n else None,  # to find the best
        prompt_logprobs=job.prompt_logprobs,
        seed=seed_of(job, job_id),
        stop=job.stop,
        stop_token_ids=frozenset(job.stop_token_ids),
        ignore_eos=job.ignore_eos,
        skip_special_tokens=job.skip_special_tokens,
        goes_on=job.raw,
    )
