"""Submitting a file of requests without waiting for its results: for `batch submit`, schedules and services."""

from collections.abc import Callable
from typing import IO

from worker.batch.lines import digest_of
from worker.batch.records import BatchFile, BatchStatus
from worker.batch.running import Plan, check_batch
from worker.batch.store import BatchStore
from worker.batch.submitting import Submitter, rules_of


def submit_file(
    store: BatchStore,
    submitter: Submitter,
    file: IO[bytes],
    plan: Plan,
    *,
    checked: Callable[[int], None] = lambda lines: None,
    submitted: Callable[[int, int], None] = lambda jobs, total: None,
) -> BatchStatus:
    """Submit a seekable file as a batch, and return that when all its jobs are there.

    The same call goes on with what an earlier one began: with the batch of `plan.batch_id`, or else with one of the
    same file that was not submitted to its end. `checked` hears how many lines were read, `submitted` how many of all
    jobs are there. Raises as `check_batch` and `Submitter.submit`.
    """
    batch = _begun(store, file, plan)
    if batch.in_progress_at is None and batch.end is None:
        num_submitted = 0
        lines = check_batch(store, file, batch, plan, checked)
        for chunk in submitter.submit(file, batch, rules_of(batch, plan.rules), lines):
            num_submitted += len(chunk)
            submitted(num_submitted, len(lines.good))
        store.submitted(batch.batch_id)
    store.forget_run(batch.batch_id)
    status = store.status(batch.batch_id)
    assert status is not None, "a batch is never deleted while it is at work"
    return status


def _begun(store: BatchStore, file: IO[bytes], plan: Plan) -> BatchFile:
    """Return the batch that is to be submitted, a new one if there is none."""
    if plan.batch_id is not None:
        return store.find(plan.batch_id) or store.create(plan.new_batch(None))
    key = plan.key(digest_of(file))
    found = store.by_run_key(key)
    if found is not None and found.end is not None:
        store.forget_run(found.batch_id)
        found = None
    return found or store.create(plan.new_batch(key))
