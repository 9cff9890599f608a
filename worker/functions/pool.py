"""The threads that run plain functions, and what they run now."""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from rq import Queue
from rq.executions import Execution
from rq.job import Job

from worker.errors import TryLater
from worker.functions.guard import Guard
from worker.records import FunctionClaim
from worker.running.held import HeldJobs
from worker.running.threads import Failure

MAX_HUNG_THREADS = 32  # that do not come back from what was given up; then the worker has to be started anew

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class RunningFunction:
    """A claimed function, from its admission to the end of its job."""

    job: Job
    queue: Queue
    execution: Execution
    guard: Guard
    claim: FunctionClaim | None = None  # None: called by hand, under no lease of ours


class FunctionPool:
    """A bounded number of daemon threads. Its functions take places among the held jobs."""

    def __init__(
        self, num_threads: int, held: HeldJobs, perform: Callable[[RunningFunction], None], failure: Failure
    ) -> None:
        """`perform` runs a function to the end of its job; it must not raise."""
        self._num_threads = num_threads
        self._held = held
        self._perform = perform
        self._failure = failure
        self._functions: dict[str, RunningFunction] = {}  # by execution id
        self._waiting: queue.SimpleQueue[RunningFunction | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_started = 0
        self._num_hung = 0
        self._is_stopped = False

    @property
    def num_free(self) -> int:
        """How many functions could start now."""
        return max(0, self._num_threads - len(self._functions))

    def stop(self) -> None:
        """Begin no more functions, and let each thread end; waits for none."""
        self._is_stopped = True
        for _ in range(self._num_started):
            self._waiting.put(None)

    def put(self, function: RunningFunction) -> None:
        """Take a function; returns at once. On the main thread, which starts the threads as they are needed."""
        with self._lock:
            self._functions[function.execution.id] = function
        self._held.occupy(function.execution.id)
        self._waiting.put(function)
        if self._num_started < self._num_threads:
            self._num_started += 1
            self._start_thread()

    def let_go(self, function: RunningFunction) -> None:
        """Forget a function whose job has ended, or is somebody else's. Its lease is not renewed any more."""
        with self._lock:
            self._functions.pop(function.execution.id, None)
        self._held.vacate(function.execution.id)

    def find(self, execution_id: str) -> RunningFunction | None:
        """Return a function by its execution's id."""
        return self._functions.get(execution_id)

    def find_job(self, job_id: str) -> RunningFunction | None:
        """Return the latest function of a job."""
        return next((function for function in reversed(self.all()) if function.job.id == job_id), None)

    def all(self) -> tuple[RunningFunction, ...]:
        """Return a snapshot, oldest first."""
        with self._lock:
            return tuple(self._functions.values())

    def give_up(self, function: RunningFunction) -> None:
        """Forget a function that was abandoned. Its thread, if it has begun, may hang: another takes its place."""
        self.let_go(function)
        if self._is_stopped or not function.guard.has_begun:
            return
        with self._lock:
            self._num_hung += 1
            num_hung = self._num_hung
        if num_hung > MAX_HUNG_THREADS:
            self._failure.report(
                TryLater(f"{num_hung} function threads hang; the worker has to start anew"), "functions"
            )
        else:
            self._start_thread()

    def _start_thread(self) -> None:
        threading.Thread(target=self._serve, name="pagemill-function", daemon=True).start()

    def _serve(self) -> None:
        while (function := self._waiting.get()) is not None and not self._is_stopped:
            if not function.guard.begin():
                continue
            self._perform(function)
            function.guard.close()
            self.let_go(function)
            if function.guard.is_abandoned:  # another thread has this one's place
                with self._lock:
                    self._num_hung -= 1
                return
