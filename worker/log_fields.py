"""What a log record tells besides its message: which job it is about, and which worker wrote it.

Lines of text have these in their messages, where they matter; JSON logs have each as a field of its own.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from worker.records import Claim, Lease
from worker.trace_context import trace_parent

FIELDS = ("job_id", "batch_id", "tenant", "queue", "worker", "epoch", "trace_id")

_at_hand: ContextVar[Mapping[str, object]] = ContextVar("pagemill_job_at_hand")


def about(lease: Lease) -> dict[str, object]:
    """Return the `extra` of a log call that is about a claimed job."""
    fields: dict[str, object] = {"job_id": lease.job_id, "queue": lease.queue, "epoch": lease.epoch}
    if isinstance(lease, Claim):
        fields["tenant"] = lease.job.tenant
        if lease.job.batch_id is not None:
            fields["batch_id"] = lease.job.batch_id
        if (parent := trace_parent(lease)) is not None:
            fields["trace_id"] = parent.trace_id
    return fields


@contextmanager
def at_hand(fields: Mapping[str, object]) -> Iterator[None]:
    """Give these fields to whatever this thread logs until the block ends: lines of libraries too."""
    token = _at_hand.set(fields)
    try:
        yield
    finally:
        _at_hand.reset(token)


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that a record has, in the order of `FIELDS`; called in the thread that logs it."""
    known = {**_at_hand.get({}), **record.__dict__}
    return {name: known[name] for name in FIELDS if known.get(name) is not None}


@contextmanager
def naming_worker(name: str) -> Iterator[None]:
    """Have all that this process logs tell the worker's name until the block ends."""

    def add_name(record: logging.LogRecord) -> bool:
        record.__dict__.setdefault("worker", name)
        return True

    handlers = tuple(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(add_name)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(add_name)
