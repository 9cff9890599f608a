"""The live thread: acts on requests to cancel and streams the tokens of jobs that somebody watches."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.detokenizing import Detokenizer
from engine.request import Request
from worker.errors import ServiceUnavailable, TryLater
from worker.jobs import PromptJob
from worker.log_fields import about
from worker.queue.access import WHOLE_REASONS, TokenDelta
from worker.queue.job_queue import JobQueue
from worker.records import Outcome
from worker.running.choices import output_text, reason_of
from worker.running.growing_output import GrowingOutput
from worker.running.held import HeldJob, HeldJobs
from worker.running.outcomes import echoed

POLL_SECONDS = 0.2  # between two looks at who watches and who cancels; a job that was just claimed is looked at sooner
TICK_SECONDS = 0.03  # between two deltas of a stream: about a token's time
REST_SHARE = (
    4.0  # of the time that the deltas of all streams took, before the next ones: the engine needs the processor
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Output:
    text: GrowingOutput | None = None  # once the engine has the job, of one of which all outputs are kept
    sent: int = 0  # characters
    has_ended: bool = False  # and its end was sent

    def note_sent(self, delta: TokenDelta) -> None:
        self.sent += len(delta.text)
        self.has_ended = delta.finish_reason is not None
        if self.text is not None:
            self.text.forget(len(delta.text))


@dataclass(slots=True)
class _Stream:
    job: HeldJob
    outputs: list[_Output]  # one for each that is kept
    is_broken: bool = False

    def rest(self, outcome: Outcome) -> list[TokenDelta]:
        """Return what was not sent of the outputs of the job that has ended: nothing but that, if it failed."""
        texts = [outcome.text or "", *(choice.text for choice in outcome.choices)]
        before = "" if outcome.text is None else echoed(outcome.claim.job)
        rest = [
            TokenDelta((before + text)[output.sent :], position=output.sent, index=index)
            for index, (text, output) in enumerate(zip(texts, self.outputs, strict=False))
        ]
        *others, last = [delta for delta in rest if delta.text] or rest[:1]
        return [*others, replace(last, final=True)]


class Live:
    """Polls Redis twice per `POLL_SECONDS`, whatever the number of jobs, and once more for each round of claims; costs
    the engine nothing while nobody watches."""

    def __init__(
        self,
        job_queue: JobQueue,
        held: HeldJobs,
        detokenize: Detokenizer,
        cancel: Callable[[str], None],
        stop_function: Callable[[str], bool],
    ) -> None:
        """`cancel` ends a held job by its id; `stop_function` a plain function, and tells whether it was held here."""
        self._queue = job_queue
        self._held = held
        self._detokenize = detokenize
        self._cancel = cancel
        self._stop_function = stop_function
        self._streams: dict[str, _Stream] = {}  # by execution id
        self._publishing = threading.Lock()  # held over a delta and its publication, so that none comes twice
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """Poll until stopped. A Redis that is down is logged once per outage."""
        is_down = False
        pause, next_poll, num_added = TICK_SECONDS, 0.0, 0
        while not self._stopped.wait(pause):
            pause, started = TICK_SECONDS, time.monotonic()
            if not len(self._held):
                continue
            try:
                if started >= next_poll or self._held.num_added != num_added:
                    next_poll, num_added = started + POLL_SECONDS, self._held.num_added
                    self._cancel_requested()
                    self._open_streams(self._queue.watched())
                self._publish_growth()
                pause = max(TICK_SECONDS, REST_SHARE * (time.monotonic() - started))
                is_down = False
            except (ServiceUnavailable, TryLater) as error:
                pause = POLL_SECONDS
                if not is_down:
                    logger.warning("live tokens and cancellation are off: %s", error)
                is_down = True

    def end_streams(self, outcomes: Sequence[Outcome]) -> None:
        """Publish the rest of ended jobs' outputs, so that all of an output is in its stream before anybody can see
        that its job has ended. From any thread; a Redis that is down is logged, and the streams are cut short."""
        with self._publishing:
            deltas = {}
            for outcome in outcomes:
                stream = self._streams.pop(outcome.claim.execution_id, None)
                if stream is not None:
                    deltas[outcome.claim.job_id] = stream.rest(outcome)
            if not deltas:
                return
            try:
                self._queue.publish_tokens(deltas)
            except (ServiceUnavailable, TryLater) as error:
                logger.warning("the last tokens of %d jobs were not published: %s", len(deltas), error)

    def _cancel_requested(self) -> None:
        for job_id in self._queue.cancelling():
            job = self._held.find(job_id)
            if job is not None and not job.cancel_requested:
                self._cancel(job_id)
            elif job is None and self._stop_function(job_id):
                self._queue.forget_cancelling([job_id])

    def _publish_growth(self) -> None:
        with self._publishing:
            grown = {execution_id: fresh for execution_id, one in self._streams.items() if (fresh := self._fresh(one))}
            if not grown:
                return
            self._queue.publish_tokens(
                {self._streams[execution_id].job.claim.job_id: deltas for execution_id, deltas in grown.items()}
            )
            for execution_id, deltas in grown.items():
                for delta in deltas:
                    self._streams[execution_id].outputs[delta.index].note_sent(delta)

    def _open_streams(self, job_ids: frozenset[str]) -> None:
        """Begin the streams of watched jobs; forget those of jobs that went without an end of their own."""
        watched = {job.claim.execution_id: job for job_id in job_ids if (job := self._held.find(job_id)) is not None}
        with self._publishing:
            running = {job.claim.execution_id for job in self._held.unfinished()}
            for execution_id in watched.keys() & running - self._streams.keys():
                job = watched[execution_id]
                self._streams[execution_id] = _Stream(job, [_Output() for _ in range(job.claim.job.n)])
            held = {job.claim.execution_id for job in self._held.all()}
            for execution_id in self._streams.keys() - held:
                del self._streams[execution_id]

    def _fresh(self, stream: _Stream) -> list[TokenDelta]:
        """Return what a job's outputs have grown by, as far as it is settled."""
        requests = stream.job.outputs
        if not requests or stream.is_broken:
            return []
        if len(requests) > len(stream.outputs):  # which are best turns out at the end
            return []
        try:
            # The last of them to end does so with its job, which may still fail to be kept.
            go_on = any(request.finish_reason is None for request in requests)
            deltas = []
            for index, (request, output) in enumerate(zip(requests, stream.outputs, strict=True)):
                if output.has_ended:
                    continue
                if go_on and request.finish_reason in WHOLE_REASONS:
                    deltas.append(self._ending(stream.job.claim.job, request, output.sent, index))
                    continue
                if output.text is None:
                    before = echoed(stream.job.claim.job)
                    output.text = GrowingOutput(request.params, self._detokenize, before)
                if text := output.text.unsent(request):
                    deltas.append(TokenDelta(text, position=output.sent, index=index))
        except Exception:  # the detokenizer's bug: the job's outcome will tell, other jobs stream on
            stream.is_broken = True
            claim = stream.job.claim
            logger.exception("the output of job %s cannot be streamed", claim.job_id, extra=about(claim))
            return []
        return deltas

    def _ending(self, job: PromptJob, request: Request, num_sent: int, index: int) -> TokenDelta:
        """Return all that is left of an output that has ended, and why it has."""
        assert request.finish_reason is not None, "it has ended"
        text = output_text(request, self._detokenize)
        reason = reason_of(job, request.finish_reason, text)
        return TokenDelta((echoed(job) + text)[num_sent:], position=num_sent, index=index, finish_reason=reason)
