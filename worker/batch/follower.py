"""Writes the results of a batch to its files as its jobs end, in whatever order they do."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from worker.batch.line_set import LineSet
from worker.batch.output_file import OutputFile, opened_output
from worker.batch.records import BatchFile, line_of
from worker.batch.result_lines import fault_line, result_line
from worker.batch.results import RESULTS_AT_ONCE, BatchResults
from worker.batch.store import BatchStore
from worker.openai_api.fields import Endpoint
from worker.records import JobState

WINDOW_LINES = 2_000  # searched behind the last job that has ended: more than workers hold


@dataclass(slots=True)
class Tally:
    """What became of a batch's requests so far."""

    completed: int = 0
    failed: int = 0  # lines at fault included

    @property
    def ended(self) -> int:
        return self.completed + self.failed


class ErrorsFile:
    """The file of errors. It is written anew by each command, and not made as long as there is none."""

    def __init__(self, path: Path, batch_id: str, opened: ExitStack) -> None:
        """`opened` closes the file."""
        self.path = path
        self._batch_id = batch_id
        self._opened = opened
        self._file: OutputFile | None = None
        if path.exists():
            self._open()

    def append(self, lines: list[bytes]) -> None:
        """Write lines at the end; see `OutputFile.append`."""
        if lines:
            (self._file or self._open()).append(lines)

    def sync(self) -> None:
        """Have what was written on the disk."""
        if self._file is not None:
            self._file.sync()

    def _open(self) -> OutputFile:
        file = self._opened.enter_context(opened_output(self.path))
        file.claim(self._batch_id)
        file.clear()
        self._file = file
        return file


class Follower:
    """Follows the jobs of one batch. Memory is a bit for each line, and a page of results."""

    def __init__(self, store: BatchStore, batch: BatchFile, output: OutputFile, errors: ErrorsFile) -> None:
        """What is in `output` already is not written again. Raises PagemillError when that is of another batch."""
        self._store = store
        self._results = BatchResults(store.engine)
        self._batch_id = batch.batch_id
        self._output = output
        self._errors = errors
        self._written = output.claim(batch.batch_id)
        self._open = LineSet()
        self._first_open = 1
        self._last_known = 0
        self._last_ended = 0
        self._last_fault = 0
        self._reach = WINDOW_LINES
        self.tally = Tally(completed=len(self._written))

    @property
    def num_open(self) -> int:
        """Jobs that were submitted and are not written yet."""
        return len(self._open)

    def expect(self, line: int) -> None:
        """Wait for the job of a line, unless its output is written already."""
        self._last_known = max(self._last_known, line)
        if line not in self._written:
            self._open.add(line)
            self._first_open = min(self._first_open, line)

    def write_faults(self) -> None:
        """Write the lines at fault, which have no jobs; called again, those that are not written yet."""
        while faults := self._store.faults(self._batch_id, self._last_fault, RESULTS_AT_ONCE):
            self._errors.append([fault_line(self._batch_id, fault) for fault in faults])
            self.tally.failed += len(faults)
            self._last_fault = faults[-1].line

    def poll(self, endpoint: Endpoint) -> bool:
        """Write what has ended since; tell whether anything had.

        Jobs end more or less in the order of their lines. So only lines around the last one that has ended are looked
        at, and more of them each time that nothing is found there.
        """
        while self._first_open <= self._last_known and self._first_open not in self._open:
            self._first_open += 1
        last = min(self._last_known, max(self._last_ended, self._first_open) + self._reach)
        ended = self._results.ended_lines(self._batch_id, self._first_open, last) if self.num_open else []
        fresh = [line for line in ended if line in self._open]
        if not fresh:
            self._reach = min(2 * self._reach, WINDOW_LINES + self._last_known)
            return False
        self._reach = WINDOW_LINES
        self._write(endpoint, fresh)
        self._last_ended = max(self._last_ended, fresh[-1])
        return True

    def sync(self) -> None:
        """Have what was written on the disk."""
        self._output.sync()
        self._errors.sync()

    def _write(self, endpoint: Endpoint, lines: list[int]) -> None:
        for place in range(0, len(lines), RESULTS_AT_ONCE):
            good: list[bytes] = []
            bad: list[bytes] = []
            page = list(self._results.read(self._batch_id, lines[place : place + RESULTS_AT_ONCE]))
            for job in page:
                (good if job.state is JobState.DONE else bad).append(result_line(endpoint, job))
            self._output.append(good)
            self._errors.append(bad)
            self.tally.completed += len(good)
            self.tally.failed += len(bad)
            for job in page:
                self._open.discard(line_of(job.job_id))
