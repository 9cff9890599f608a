"""The crash journal: what a dead process's successors read in it, and whose journals they leave alone."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.offload_policy import CopyTime
from engine.step_plan import Computed, Launched, SchedulerOutput
from tests.worker.test_parts import ROOT
from worker.queue.crashes import CrashKind
from worker.queue.suspects import DeadWorker
from worker.running.crash_journal import (
    FEW,
    FOLDER,
    CrashJournal,
    JournaledRunner,
    NoJournal,
    Place,
    journaling,
    note_end,
)

QUEUE = "redis://localhost/0"
DYING = """
import os, signal, sys
from pathlib import Path
from worker.running.crash_journal import CrashJournal
journal = CrashJournal.open(Path(sys.argv[1]), "dying", sys.argv[2])
journal.note_step({"x1": 0, "x2": 7})
with journal.aside("x3"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


DYING_ON_A_FULL_DISK = """
import os, resource, signal, sys
from pathlib import Path
from worker.running.crash_journal import FEW, CrashJournal
journal = CrashJournal.open(Path(sys.argv[1]), "dying", sys.argv[2])
journal.note_step({"x1": 0, "x2": 7})
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
many = {f"y{number}": 0 for number in range(FEW + 1)}
with journal.aside("x3"):
    journal.note_step(many)
    if sys.argv[3] == "mended":
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        journal.note_step(many)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def die(data_dir: Path, queue: str = QUEUE) -> int:
    """Let a process die at work; return its id."""
    process = subprocess.Popen([sys.executable, "-c", DYING, str(data_dir), queue], cwd=ROOT)
    assert process.wait() == -9
    return process.pid


def dead_workers(data_dir: Path, queue: str = QUEUE) -> list[DeadWorker]:
    """Take over as a new worker would."""
    found: list[DeadWorker] = []
    with journaling(data_dir, "successor", queue) as journal:
        journal.take_over(found.append)
    return found


def journals(data_dir: Path) -> list[Path]:
    return list((data_dir / FOLDER).iterdir())


def test_dead_process_tells_who_was_at_work(tmp_path: Path) -> None:
    die(tmp_path)
    assert dead_workers(tmp_path) == [
        DeadWorker("dying", CrashKind.DEATH, None, frozenset({"x1", "x2", "x3"}), {"x1": 0, "x2": 7})
    ]
    assert dead_workers(tmp_path) == []
    assert journals(tmp_path) == []


@pytest.mark.parametrize("ending", ["full", "mended"])
def test_disk_that_takes_nothing_stops_no_work_and_blames_nobody(tmp_path: Path, ending: str) -> None:
    """The limit on the size of files stands in for the disk: writing fails, and what was written before stays."""
    command = [sys.executable, "-c", DYING_ON_A_FULL_DISK, str(tmp_path), QUEUE, ending]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -9
    (dead,) = dead_workers(tmp_path)
    everybody = {"x3", *(f"y{number}" for number in range(FEW + 1))}
    assert dead.at_work == (None if ending == "full" else everybody)


def test_supervisor_adds_the_signal(tmp_path: Path) -> None:
    pid = die(tmp_path)
    note_end(tmp_path, pid + 1, 6)
    note_end(tmp_path, pid, 11)
    assert [dead.signal for dead in dead_workers(tmp_path)] == [11]


def test_supervisor_waits_for_a_child_that_still_has_the_journal(tmp_path: Path) -> None:
    """Between its fork and its own program, a child of the dead process holds what that one held."""
    pid = die(tmp_path)
    (path,) = journals(tmp_path)
    with path.open("rb") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        supervisor = threading.Thread(target=note_end, args=(tmp_path, pid, 11))
        supervisor.start()
        supervisor.join(0.1)
        assert supervisor.is_alive()
    supervisor.join()
    assert [dead.signal for dead in dead_workers(tmp_path)] == [11]


def test_living_process_is_left_alone(tmp_path: Path) -> None:
    with journaling(tmp_path, "alive", QUEUE) as journal:
        journal.note_step({"x1": 0})
        note_end(tmp_path, os.getpid(), 9)
        assert dead_workers(tmp_path) == []
        assert len(journals(tmp_path)) == 1
    assert journals(tmp_path) == []


def test_workers_of_another_queue_are_left_to_their_own(tmp_path: Path) -> None:
    die(tmp_path, "redis://elsewhere/0")
    assert dead_workers(tmp_path) == []
    assert len(dead_workers(tmp_path, "redis://elsewhere/0")) == 1


def test_forgotten_journal_goes_after_a_day(tmp_path: Path) -> None:
    die(tmp_path, "redis://elsewhere/0")
    (path,) = journals(tmp_path)
    os.utime(path, (1.0, 1.0))
    assert dead_workers(tmp_path) == []
    assert journals(tmp_path) == []


def test_what_cannot_be_released_now_is_tried_again(tmp_path: Path) -> None:
    die(tmp_path)

    def fail(dead: DeadWorker) -> None:
        raise OSError("no server")

    with journaling(tmp_path, "successor", QUEUE) as journal, pytest.raises(OSError, match="no server"):
        journal.take_over(fail)
    assert len(dead_workers(tmp_path)) == 1


@pytest.mark.parametrize("place", [Place.STEP, Place.ASIDE])
def test_torn_line_makes_everybody_a_suspect(tmp_path: Path, place: Place) -> None:
    die(tmp_path)
    (path,) = journals(tmp_path)
    with path.open("r+b") as file:
        file.seek(place + 12)
        file.write(b"#")
    assert [dead.at_work for dead in dead_workers(tmp_path)] == [None]


def test_journal_of_which_nothing_is_left_is_no_worker(tmp_path: Path) -> None:
    die(tmp_path)
    (path,) = journals(tmp_path)
    path.write_bytes(b"")
    assert dead_workers(tmp_path) == []


def test_reboot_is_told_from_a_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    die(tmp_path)
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("another")
    monkeypatch.setattr("worker.running.crash_journal.BOOT_ID_FILE", boot_id)
    assert [dead.kind for dead in dead_workers(tmp_path)] == [CrashKind.REBOOT]


def test_orderly_end_that_leaves_leases_blames_nobody(tmp_path: Path) -> None:
    with journaling(tmp_path, "worker-1", QUEUE) as journal:
        journal.note_step({"x1": 0})
        journal.leave()
    assert [dead.at_work for dead in dead_workers(tmp_path)] == [frozenset()]


def test_progress_is_noted_of_few_and_only_changes_of_many(tmp_path: Path) -> None:
    journal = CrashJournal.open(tmp_path, "worker-1", QUEUE)
    (path,) = journals(tmp_path)
    many = {f"x{number}": 5 for number in range(FEW + 1)}
    journal.note_step(many)
    path.write_bytes(b"")
    journal.note_step(dict.fromkeys(many, 6))
    assert path.stat().st_size == 0
    few = dict(list(many.items())[:FEW])
    journal.note_step(few)
    assert path.stat().st_size > 0
    path.write_bytes(b"")
    journal.note_step(few)
    assert path.stat().st_size > 0
    journal.close()


def test_folder_that_cannot_be_written_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    with journaling(tmp_path, "worker-1", QUEUE) as journal:
        assert isinstance(journal, NoJournal)
        journal.note_step({"x1": 0})
        with journal.aside("x2"):
            journal.take_over(lambda dead: pytest.fail("there are none"))
        journal.leave()
    assert "there is no crash journal" in caplog.text


def test_runner_notes_a_step_before_it_runs(tmp_path: Path) -> None:
    noted: list[str] = []

    class Journal(NoJournal):
        def note_step(self, output_tokens: object) -> None:
            noted.append("noted")

    class Runner:
        def launch(self, plan: SchedulerOutput) -> Launched:
            noted.append("run")
            return Computed({})

        def take_copy_times(self) -> tuple[CopyTime, ...]:
            return ()

        def scrub(self, block_ids: list[int]) -> None:
            noted.append("scrub")

        def probe(self) -> None:
            noted.append("probe")

    runner = JournaledRunner(Runner(), Journal())
    runner.launch(SchedulerOutput((), 0, ()))
    runner.scrub([])
    runner.probe()
    assert noted == ["noted", "run", "scrub", "probe"]
