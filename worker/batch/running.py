"""A file of requests from its first line to the last of its results: `pagemill batch run` and `batch submit`.

SQL knows the batch of a file by a key made of the file's content and of whatever else makes the results what they are.
So the same command finds its batch again, whatever ended it, and goes on: jobs have the ids of their lines, and what
the output has is not written twice.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import IO, Protocol

from worker.batch.follower import Follower
from worker.batch.lines import CheckedFile, RequestReader, RequestRules, check_file
from worker.batch.patience import Patience
from worker.batch.records import BatchFile, BatchStatus, new_batch_id
from worker.batch.results import BatchResults
from worker.batch.store import BatchStore
from worker.batch.submitting import Submitter, rules_of
from worker.errors import PagemillError
from worker.openai_api.fields import Endpoint
from worker.sql.tables import utc_now

POLL_SECONDS = 1.0
SHORTEST_PAUSE_SECONDS = 0.1
PATIENCE = 20  # a poll that took long is followed by so many times as long a pause
FIRST_COMPLAINT_SECONDS = 2.0
COMPLAIN_SECONDS = 5.0


class Listener(Protocol):
    """Who is told how far it is."""

    def notice(self, text: str) -> None:
        """Something that the user should know."""

    def checked(self, lines: int) -> None:
        """So many lines were read."""

    def went_on(self, completed: int, failed: int, total: int) -> None:
        """So many of all requests have ended well, and so many otherwise."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to become of a file. `window` is what its completion may take, None for as long as it takes.

    `batch_id` is that of a batch that its maker knows by name, and comes back to with it.
    """

    input_name: str
    output_name: str | None
    tenant: str
    queue: str
    rules: RequestRules
    window: timedelta | None
    strict: bool = False  # one line at fault, and nothing is run
    labels: tuple[tuple[str, str], ...] = ()
    batch_id: str | None = None

    def key(self, digest: str) -> str:
        """Return what the batch is found by again; `digest` is that of the file."""
        rules = self.rules
        parts = [digest, self.output_name, self.tenant, rules.endpoint, rules.max_tokens, rules.model]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def new_batch(self, run_key: str | None) -> BatchFile:
        """Return a batch that nobody knows yet."""
        now = utc_now()
        return BatchFile(
            batch_id=self.batch_id or new_batch_id(),
            run_key=run_key,
            tenant=self.tenant,
            queue=self.queue,
            endpoint=self.rules.endpoint,
            input_name=self.input_name,
            output_name=self.output_name,
            window_seconds=None if self.window is None else round(self.window.total_seconds()),
            labels=dict(self.labels),
            created_at=now,
            expires_at=None if self.window is None else now + self.window,
        )


class BatchFailed(PagemillError):
    """Nothing of a file is run; its batch tells why, and its lines at fault are in SQL."""

    def __init__(self, batch_id: str, failure: str) -> None:
        super().__init__(failure)
        self.batch_id = batch_id


def check_batch(
    store: BatchStore, file: IO[bytes], batch: BatchFile, plan: Plan, tick: Callable[[int], None]
) -> CheckedFile:
    """Read all lines of a batch's file, and write down which are at fault, in place of what an earlier try found.

    Raises BatchFailed where there is nothing to run, or some fault and the plan is strict.
    """
    store.clear_faults(batch.batch_id)
    # Whichever models are served by now: what became a job of a line before stays one.
    rules = plan.rules if batch.num_requests is None else replace(plan.rules, served=None)
    reader = RequestReader(rules_of(batch, rules))
    checked = check_file(file, reader, lambda faults: store.add_faults(batch.batch_id, faults), tick)
    store.validated(batch.batch_id, checked.endpoint, checked.num_requests, checked.num_faults)
    failure = None
    if not checked.num_requests:
        failure = f"{plan.input_name}: holds no requests"
    elif not checked.good:
        failure = f"{plan.input_name}: none of its {checked.num_requests} lines can be served"
    elif checked.num_faults and plan.strict:
        failure = f"{plan.input_name}: {checked.num_faults} of {checked.num_requests} lines are at fault"
    if failure is not None:
        first = next(store.all_faults(batch.batch_id), None)
        failure += "" if first is None else f"; line {first.line}: {first.message}"
        store.fail(batch.batch_id, failure)
        raise BatchFailed(batch.batch_id, failure)
    return checked


class BatchRun:
    """One command that brings a file to its results, or goes on with what an earlier one began."""

    def __init__(
        self,
        store: BatchStore,
        submitter: Submitter,
        follower: Follower,
        listener: Listener,
        complaint: Callable[[], str | None],
        patience: Patience,
    ) -> None:
        """`complaint` tells why nothing may ever come, if so; `patience` is for a database that is away."""
        self._store = store
        self._submitter = submitter
        self._follower = follower
        self._listener = listener
        self._complaint = complaint
        self._patience = patience
        self._complained = ""
        self._complain_at = time.monotonic() + FIRST_COMPLAINT_SECONDS
        self._poll_at = 0.0

    def run(self, file: IO[bytes], batch: BatchFile, plan: Plan) -> BatchStatus:
        """Return how the batch ended. Raises as `check_batch`, the submitter and the follower's files do."""
        if batch.in_progress_at is None and batch.end is None:
            endpoint, total = self._submit(file, batch, plan)
        else:
            assert batch.endpoint is not None, "a batch that was submitted has an endpoint"
            endpoint, total = batch.endpoint, batch.num_requests or 0
            self._patience.call(self._follower.write_faults)
            results = BatchResults(self._store.engine)
            for line in self._patience.call(lambda: results.lines(batch.batch_id)):
                self._follower.expect(line)
        self._follow(endpoint, total)
        self._follower.sync()
        return self._patience.call(lambda: self._store.written(batch.batch_id))

    def _submit(self, file: IO[bytes], batch: BatchFile, plan: Plan) -> tuple[Endpoint, int]:
        try:
            checked = self._patience.call(
                lambda: check_batch(self._store, file, batch, plan, self._listener.checked),
            )
        except BatchFailed:
            self._patience.call(self._follower.write_faults)
            raise
        assert checked.endpoint is not None, "a good line has an endpoint"
        self._patience.call(self._follower.write_faults)
        for lines in self._submitter.submit(file, batch, rules_of(batch, plan.rules), checked):
            for line in lines:
                self._follower.expect(line)
            if time.monotonic() >= self._poll_at:
                self._poll(checked.endpoint, checked.num_requests)
        self._patience.call(lambda: self._store.submitted(batch.batch_id))
        return checked.endpoint, checked.num_requests

    def _follow(self, endpoint: Endpoint, total: int) -> None:
        pause = SHORTEST_PAUSE_SECONDS
        while self._follower.num_open:
            found = self._poll(endpoint, total)
            pause = SHORTEST_PAUSE_SECONDS if found else min(2 * pause, POLL_SECONDS)
            if self._follower.num_open:
                time.sleep(max(pause, self._poll_at - time.monotonic()))
        self._went_on(total)

    def _poll(self, endpoint: Endpoint, total: int) -> bool:
        """Write what has ended, and settle when to look again: the longer it took, the later."""
        started = time.monotonic()
        found = self._patience.call(lambda: self._follower.poll(endpoint))
        now = time.monotonic()
        self._poll_at = now + max(SHORTEST_PAUSE_SECONDS, PATIENCE * (now - started) if not found else 0.0)
        self._went_on(total)
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_SECONDS
            self._complain()
        return found

    def _went_on(self, total: int) -> None:
        tally = self._follower.tally
        self._listener.went_on(tally.completed, tally.failed, total)

    def _complain(self) -> None:
        text = self._complaint() or ""
        if text and text != self._complained:
            self._listener.notice(text)
        self._complained = text
