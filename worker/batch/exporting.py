"""The output and the errors of a batch, made from SQL whenever somebody asks, in the order of the input's lines."""

from collections.abc import Iterator

from worker.batch.records import BatchFile
from worker.batch.result_lines import fault_line, result_line
from worker.batch.results import UNHAPPY_STATES, BatchResults
from worker.batch.store import BatchStore
from worker.records import JobState


def output_lines(store: BatchStore, batch: BatchFile) -> Iterator[bytes]:
    """Yield a line for each request that is done."""
    if batch.endpoint is not None:
        for job in BatchResults(store.engine).read_all(batch.batch_id, [JobState.DONE]):
            yield result_line(batch.endpoint, job)


def error_lines(store: BatchStore, batch: BatchFile) -> Iterator[bytes]:
    """Yield a line for each line at fault, then one for each request that ended without being done."""
    for fault in store.all_faults(batch.batch_id):
        yield fault_line(batch.batch_id, fault)
    if batch.endpoint is not None:
        for job in BatchResults(store.engine).read_all(batch.batch_id, UNHAPPY_STATES):
            yield result_line(batch.endpoint, job)
