"""The live thread: acts on requests to cancel and streams the tokens of jobs that somebody watches."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from engine.stopping import Detokenize
from worker.errors import ServiceUnavailable, TryLater
from worker.held import HeldJob, HeldJobs
from worker.outcomes import output_text
from worker.queue import JobQueue
from worker.queue_access import TokenDelta

POLL_SECONDS = 0.2
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer gives for a character whose last bytes are still to come

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Stream:
    job: HeldJob
    sent: int = 0  # characters


class Live:
    """Polls Redis twice per `POLL_SECONDS`, whatever the number of jobs; costs the engine nothing."""

    def __init__(
        self, job_queue: JobQueue, held: HeldJobs, detokenize: Detokenize, cancel: Callable[[str], None]
    ) -> None:
        self._queue = job_queue
        self._held = held
        self._detokenize = detokenize
        self._cancel = cancel
        self._streams: dict[str, _Stream] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """Poll until stopped. A Redis that is down is logged once per outage."""
        was_down = False
        while not self._stopped.wait(POLL_SECONDS):
            if not len(self._held) and not self._streams:
                continue
            try:
                self._cancel_requested()
                self._publish()
                was_down = False
            except (ServiceUnavailable, TryLater) as error:
                if not was_down:
                    logger.warning("live tokens and cancellation are off: %s", error)
                was_down = True

    def _cancel_requested(self) -> None:
        for job_id in self._queue.cancelling():
            job = self._held.get(job_id)
            if job is not None and not job.cancel_requested.is_set():
                self._cancel(job_id)

    def _publish(self) -> None:
        for job_id in self._queue.watched():
            job = self._held.get(job_id)
            if job is not None and job_id not in self._streams:
                self._streams[job_id] = _Stream(job)
        deltas = {job_id: delta for job_id, stream in self._streams.items() if (delta := self._delta(stream))}
        if deltas:
            self._queue.publish_tokens(deltas)
        for job_id, delta in deltas.items():
            if delta.final:
                del self._streams[job_id]
            else:
                self._streams[job_id].sent += len(delta.text)

    def _delta(self, stream: _Stream) -> TokenDelta | None:
        """Return what the job's output has grown by, or None. What may still change is held back: an incomplete last
        character, and as much as a stop string could take away."""
        request = stream.job.request
        ended = self._held.get(stream.job.claim.job_id) is not stream.job
        text = output_text(request, self._detokenize) if request else ""
        if request and not ended:
            held_back = max((len(stop) - 1 for stop in request.params.stop), default=0)
            text = text[: len(text) - held_back].rstrip(REPLACEMENT)
        fresh = text[stream.sent :]
        return TokenDelta(fresh, final=ended) if fresh or ended else None
