"""The worker's parent process: which ends are final, what it hands on, how long it waits."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.fakes import eventually
from tests.worker.test_parts import ROOT
from worker.errors import ExitCode
from worker.queue.suspects import DeadWorker
from worker.running.crash_journal import FOLDER, journaling
from worker.running.supervisor import HEALTHY_SECONDS, Pauses

SUPERVISING = """
import sys
from pathlib import Path
from worker.running.supervisor import Supervisor
sys.exit(Supervisor([sys.executable, "-c", sys.argv[2], sys.argv[1]], Path(sys.argv[1])).run())
"""
# Each start adds a line to the file `starts`; the rest is what this one does.
BEGIN = """
import os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
with (folder / "starts").open("a") as file:
    print(os.getpid(), file=file)
starts = len((folder / "starts").read_text().splitlines())
"""
STUBBORN = """
received = []
def note(number, frame):
    received.append(number)
    if len(received) == 2:
        sys.exit(3)
signal.signal(signal.SIGTERM, note)
while True:
    (folder / "received").write_text(str(len(received)))
    (folder / "ready").touch()
    time.sleep(0.01)
"""


def start(folder: Path, program: str) -> subprocess.Popen[bytes]:
    """Start a supervisor of a program; its log is the file `log`."""
    with (folder / "log").open("w") as log:
        return subprocess.Popen([sys.executable, "-c", SUPERVISING, str(folder), BEGIN + program], cwd=ROOT, stderr=log)


def starts(folder: Path) -> int:
    path = folder / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.USAGE, ExitCode.UNAVAILABLE, ExitCode.CONFIGURATION])
def test_orderly_ends_are_final(tmp_path: Path, code: ExitCode) -> None:
    assert start(tmp_path, f"sys.exit({int(code)})").wait() == code
    assert starts(tmp_path) == 1


@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "sys.exit(75)",
        "os._exit(70)",
        "os.kill(os.getpid(), 40)",
    ],
)
def test_worker_that_died_starts_again(tmp_path: Path, end: str) -> None:
    assert start(tmp_path, f"if starts < 2: {end}").wait() == ExitCode.OK
    assert starts(tmp_path) == 2


def test_signal_is_noted_in_the_journal(tmp_path: Path) -> None:
    program = """
from worker.running.crash_journal import CrashJournal
if starts < 2:
    CrashJournal.open(folder, "dying", "queue").note_step({"x1": 0})
    os.kill(os.getpid(), signal.SIGBUS)
"""
    assert start(tmp_path, program).wait() == ExitCode.OK
    assert (tmp_path / FOLDER).exists()
    found: list[DeadWorker] = []
    with journaling(tmp_path, "successor", "queue") as journal:
        journal.take_over(found.append)
    assert [(dead.name, dead.signal) for dead in found] == [("dying", signal.SIGBUS)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_each_signal_is_handed_on(tmp_path: Path, number: signal.Signals) -> None:
    supervisor = start(tmp_path, STUBBORN)
    eventually((tmp_path / "ready").exists)
    supervisor.send_signal(number)
    eventually(lambda: (tmp_path / "received").read_text() == "1")
    assert supervisor.poll() is None
    supervisor.send_signal(number)
    assert supervisor.wait() == 3  # told to stop: whatever the code, it is not started again
    assert starts(tmp_path) == 1


def test_worker_is_told_to_stop_when_its_parent_dies(tmp_path: Path) -> None:
    supervisor = start(tmp_path, STUBBORN)
    eventually((tmp_path / "ready").exists)
    supervisor.kill()
    supervisor.wait()
    eventually(lambda: (tmp_path / "received").read_text() == "1")
    signal_worker(tmp_path)


def signal_worker(folder: Path) -> None:
    """End the program that is left behind."""
    subprocess.run(["kill", "-TERM", (folder / "starts").read_text().split()[-1]], check=True)


def test_stop_ends_the_wait_for_a_start(tmp_path: Path) -> None:
    supervisor = start(tmp_path, "os._exit(70)")
    eventually(lambda: "starts again in 4 s" in (tmp_path / "log").read_text())
    supervisor.terminate()
    assert supervisor.wait() == ExitCode.OK
    assert starts(tmp_path) == 4


def test_pauses_double_up_to_a_minute_and_end_with_health() -> None:
    pauses = Pauses()
    assert [pauses.after(1.0) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert [pauses.after(HEALTHY_SECONDS), pauses.after(1.0)] == [0, 1]
