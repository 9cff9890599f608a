"""The crash journal: what a worker's process was computing when it died, where its successors on this host find it.

Each worker process keeps one small file in `<data_dir>/crash` and holds a lock on it while it lives, so that a journal
without a lock is a dead process's, whatever process has its number now. Before anything that may crash, it is written
who takes part: one `pwrite` into the page cache, which outlives the process; microseconds, and nothing to wait for.

A journal is four lines, each at a place of its own and headed by its checksum: a process may die in the middle of a
write, and a machine before its disk has it.
"""

import fcntl
import hashlib
import json
import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol, Self

from engine.forking import prompt_id_of
from engine.offload_policy import CopyTime
from engine.step_plan import Launched, SchedulerOutput
from engine.stepping import Runner
from worker.queue.crashes import CrashKind
from worker.queue.embedded_supervisor import try_lock
from worker.queue.suspects import DeadWorker

FOLDER = "crash"
SUFFIX = ".journal"
FEW = 16  # requests in a step: of so many it is noted in each step how far they are
LETTING_GO_SECONDS = 2.0  # within which a dead process's child, forked just before, has begun a program of its own
POLL_SECONDS = 0.01
KEPT_SECONDS = 86_400  # a dead worker's journal, if nobody takes its jobs over: their leases ran out long before
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")

logger = logging.getLogger(__name__)


class Place(IntEnum):
    """Where in the file each line begins. The last has no bound."""

    OWNER = 0  # which worker and process
    END = 2048  # how the process ended, by its supervisor
    ASIDE = 4096  # executions at work outside the engine's steps
    STEP = 65_536  # executions in the engine's running, or latest, step, and how many output tokens each has


class Journal(Protocol):
    """What a worker tells its successors, and what it learns of its predecessors."""

    def note_step(self, output_tokens: Mapping[str, int]) -> None:
        """Note who takes part in the step that is about to run, by execution, and how many output tokens each has."""

    def aside(self, execution_id: str) -> AbstractContextManager[object]:
        """Note, for a while, somebody who is at work outside the engine's steps. From any thread."""

    def take_over(self, release: Callable[[DeadWorker], object]) -> None:
        """Let `release` have each dead predecessor, which is then forgotten. What it raises is passed on."""

    def leave(self) -> None:
        """Note that the worker ends in order, but must leave leases behind."""


class NoJournal:
    """For a worker that cannot write one: its jobs wait for their leases to run out, and all of them are suspects."""

    def note_step(self, output_tokens: Mapping[str, int]) -> None:
        pass

    def aside(self, execution_id: str) -> AbstractContextManager[object]:
        return nullcontext()

    def take_over(self, release: Callable[[DeadWorker], object]) -> None:
        pass

    def leave(self) -> None:
        pass


class CrashJournal:
    """The journal of this process. `note_step` is for one thread, `aside` for any."""

    def __init__(self, path: Path, descriptor: int, queue: str) -> None:
        self._path = path
        self._descriptor = descriptor
        self._queue = queue
        self._in_step: Collection[str] = frozenset()
        self._aside: set[str] = set()
        self._lock = threading.Lock()
        self._is_withdrawn = False  # the disk did not take a line
        self._leaves_leases = False

    @classmethod
    def open(cls, data_dir: Path, worker_name: str, queue_address: str) -> Self:
        """Create the journal, locked. Only workers of the same `queue_address` take it over. Raises OSError."""
        folder = data_dir / FOLDER
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        draft = folder / f"{worker_name}.draft"
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        queue = hashlib.sha256(queue_address.encode()).hexdigest()
        owner = {"worker": worker_name, "queue": queue, "pid": os.getpid(), "boot": _boot_id()}
        _write(descriptor, Place.OWNER, owner)
        path = draft.with_suffix(SUFFIX)
        draft.rename(path)  # nobody must find it before it is locked
        journal = cls(path, descriptor, queue)
        _write(descriptor, Place.ASIDE, [])
        _write(descriptor, Place.STEP, {})
        return journal

    def note_step(self, output_tokens: Mapping[str, int]) -> None:
        is_exact = len(output_tokens) <= FEW
        if is_exact or self._is_withdrawn or output_tokens.keys() != self._in_step:
            self._in_step = output_tokens.keys()
            with self._lock:
                self._note(Place.STEP, dict(output_tokens) if is_exact else dict.fromkeys(output_tokens))

    @contextmanager
    def aside(self, execution_id: str) -> Iterator[None]:
        self._note_aside(self._aside.add, execution_id)
        try:
            yield
        finally:
            self._note_aside(self._aside.discard, execution_id)

    def _note_aside(self, change: Callable[[str], None], execution_id: str) -> None:
        with self._lock:
            change(execution_id)
            self._note(Place.ASIDE, list(self._aside))

    def _note(self, place: Place, value: object) -> None:
        """Write a line. Where the disk does not take it, work goes on, and the line of the step is withdrawn until both
        can be written: a successor that does not know who was at work suspects everybody, and wrongs nobody."""
        try:
            if self._is_withdrawn:
                _write(self._descriptor, Place.ASIDE, list(self._aside))
            _write(self._descriptor, place, value)
        except OSError as error:
            if not self._is_withdrawn:
                logger.warning("the crash journal cannot be written: %s", error.strerror)
            self._is_withdrawn = True
            os.ftruncate(self._descriptor, Place.STEP)  # to shrink a file takes no room
        else:
            self._is_withdrawn = self._is_withdrawn and place is not Place.STEP

    def take_over(self, release: Callable[[DeadWorker], object]) -> None:
        for path in self._path.parent.glob(f"*{SUFFIX}"):
            with _locked(path) as descriptor:
                if descriptor is None:
                    continue
                owner = _read(descriptor, Place.OWNER)
                if isinstance(owner, dict) and owner.get("queue") == self._queue:
                    release(_dead_worker(descriptor, owner))
                elif time.time() - os.fstat(descriptor).st_mtime < KEPT_SECONDS:
                    continue
                path.unlink()

    def leave(self) -> None:
        self._leaves_leases = True

    def close(self) -> None:
        """Forget the journal: the worker ends in order. Where it leaves leases behind, the journal says that nobody is
        to blame for that."""
        if self._leaves_leases:
            self._aside.clear()
            self._note(Place.ASIDE, [])
            self._note(Place.STEP, {})
        else:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


class JournaledRunner:
    """A model runner whose steps are noted before they run.

    A job's output tokens are those that it has, or is to have, when the step begins: as many whether the step is ahead
    of another or not. A crash in the step that another one is ahead of counts as the latter's.
    """

    def __init__(self, runner: Runner, journal: Journal) -> None:
        self._runner = runner
        self._journal = journal
        self._progress: Mapping[str, int] = {}  # of the step launched last

    def launch(self, plan: SchedulerOutput) -> Launched:
        progress: dict[str, int] = {}  # of a job with several outputs, all their tokens
        for request in plan.requests:
            execution_id = prompt_id_of(request.request_id)
            progress[execution_id] = progress.get(execution_id, 0) + request.num_expected_output_tokens
        # The step that another one is ahead of is under way: those that are in the former alone take part too.
        self._journal.note_step({**self._progress, **progress} if plan.is_ahead else progress)
        self._progress = progress
        return self._runner.launch(plan)

    def take_copy_times(self) -> Sequence[CopyTime]:
        return self._runner.take_copy_times()

    def scrub(self, block_ids: list[int]) -> None:
        self._runner.scrub(block_ids)

    def probe(self) -> None:
        self._runner.probe()


@contextmanager
def journaling(data_dir: Path, worker_name: str, queue_address: str) -> Iterator[Journal]:
    """Give a journal to a worker until it ends; where the folder cannot be written, one that does nothing."""
    try:
        journal = CrashJournal.open(data_dir, worker_name, queue_address)
    except OSError as error:
        logger.warning("there is no crash journal in %s: %s", data_dir / FOLDER, error.strerror)
        yield NoJournal()
        return
    try:
        yield journal
    finally:
        journal.close()


def note_end(data_dir: Path, pid: int, signal: int) -> None:
    """Note which signal ended the worker process `pid`, a child of this one."""
    for path in (data_dir / FOLDER).glob(f"*{SUFFIX}"):
        with _opened(path) as descriptor:
            owner = None if descriptor is None else _read(descriptor, Place.OWNER)
            is_its = isinstance(owner, dict) and owner.get("pid") == pid
            if descriptor is not None and is_its and _lock(descriptor, LETTING_GO_SECONDS):
                _write(descriptor, Place.END, {"signal": signal})


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """Give a dead process's journal, locked, or None where its process lives or somebody else has, or had, it."""
    with _opened(path) as descriptor:
        yield descriptor if descriptor is not None and _lock(descriptor) else None


def _lock(descriptor: int, patience_seconds: float = 0.0) -> bool:
    """Lock a journal until it is closed; tell whether it could be, and is still there."""
    deadline = time.monotonic() + patience_seconds
    while not try_lock(descriptor, fcntl.LOCK_EX):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return os.fstat(descriptor).st_nlink > 0


def _dead_worker(descriptor: int, owner: Mapping[str, Any]) -> DeadWorker:
    end, aside, in_step = (_read(descriptor, place) for place in (Place.END, Place.ASIDE, Place.STEP))
    signal = end.get("signal") if isinstance(end, dict) else None
    is_known = isinstance(aside, list) and isinstance(in_step, dict)
    return DeadWorker(
        name=str(owner["worker"]),
        kind=CrashKind.DEATH if owner.get("boot") == _boot_id() else CrashKind.REBOOT,
        signal=signal,
        at_work=frozenset((*aside, *in_step)) if is_known else None,
        output_tokens={name: number for name, number in in_step.items() if number is not None} if is_known else {},
    )


def _write(descriptor: int, place: Place, value: object) -> None:
    text = json.dumps(value).encode()
    os.pwrite(descriptor, b"%08x %s\n" % (zlib.crc32(text), text), place)


def _read(descriptor: int, place: Place) -> Any:
    """Return what was written at a place, or None where nothing was, or not all of it."""
    later = [other for other in Place if other > place]
    size = (min(later) if later else os.fstat(descriptor).st_size) - place
    line = os.pread(descriptor, max(size, 0), place).partition(b"\n")[0]
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    return json.loads(text)


def _boot_id() -> str:
    try:
        return BOOT_ID_FILE.read_text("ascii").strip()
    except OSError:
        return ""
