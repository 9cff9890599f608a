"""Is the worker well? Judged by what it does: its engine answers, its beats reach Redis and SQL, its disk has room.

Asking costs neither Redis nor SQL anything, and waits for nobody: everything is known from what the worker does anyway.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.status import EngineStatus
from worker.running.beats import Beat
from worker.running.drain import ClaimsState
from worker.running.engine_loop import Ping
from worker.running.held import HeldJobs
from worker.running.pulse import Pulse
from worker.settings_model import Settings

BEATS_TO_MISS = 3
SHORTEST_PATIENCE_SECONDS = 15.0  # with a beat, however often it comes: a service may take its time once
LEAST_FREE_BYTES = 64 * 2**20  # on the disk of data_dir: SQLite and the embedded queue write there


@dataclass(frozen=True, slots=True)
class HealthReport:
    """A worker's health at one time; holds no secrets. Units are in the names, blocks are KV blocks."""

    healthy: bool
    problems: tuple[str, ...]  # why it is not; empty for a worker that is
    worker: str
    engine_answered_seconds_ago: float
    claims: ClaimsState
    redis_answers: bool
    sql_answers: bool
    held_jobs: int
    buffered_results: int  # of the held jobs: generated, and not yet in SQL and acknowledged
    requests_running: int
    requests_waiting: int
    blocks_free: int
    blocks: int
    disk_free_bytes: int | None  # None where it cannot be told


class Health:
    """Puts the report together, from any thread."""

    def __init__(
        self,
        settings: Settings,
        worker_name: str,
        pulse: Pulse,
        held: HeldJobs,
        engine_status: Callable[[], EngineStatus],
        claims_state: Callable[[], ClaimsState],
        beats: Mapping[str, Beat],
        send: Callable[[Ping], None],
    ) -> None:
        """`beats` has one to "Redis" and one to "SQL"; `send` hands the engine's loop a command."""
        self._settings = settings
        self._worker_name = worker_name
        self._pulse = pulse
        self._held = held
        self._engine_status = engine_status
        self._claims_state = claims_state
        self._beats = beats
        self._send = send
        self._patience_seconds = max(SHORTEST_PATIENCE_SECONDS, BEATS_TO_MISS * settings.beat_seconds)

    def probe(self) -> float:
        """Have an idle engine's loop show that it answers. Returns how many seconds ago it last did."""
        age_seconds = self._pulse.age_seconds
        if self._pulse.ask():
            self._send(Ping())
        return age_seconds

    def report(self) -> HealthReport:
        """Return the health now."""
        age_seconds = self.probe()
        status, claims = self._engine_status(), self._claims_state()
        answers = {name: beat.is_well(self._patience_seconds) for name, beat in self._beats.items()}
        disk_free_bytes = free_bytes(self._settings.data_dir)
        problems = []
        if age_seconds > self._settings.engine_timeout_seconds:
            problems.append(f"the engine has not answered for {age_seconds:.0f} s")
        problems += [f"{name} does not answer" for name, is_well in answers.items() if not is_well]
        if claims is ClaimsState.STOPPED:
            problems.append("claims have stopped")
        if disk_free_bytes is not None and disk_free_bytes < LEAST_FREE_BYTES:
            problems.append(f"the disk of data_dir has {disk_free_bytes} bytes left")
        return HealthReport(
            healthy=not problems,
            problems=tuple(problems),
            worker=self._worker_name,
            engine_answered_seconds_ago=round(age_seconds, 3),
            claims=claims,
            redis_answers=answers["Redis"],
            sql_answers=answers["SQL"],
            held_jobs=len(self._held),
            buffered_results=self._held.num_ended,
            requests_running=status.num_running,
            requests_waiting=status.num_waiting,
            blocks_free=status.num_blocks - status.blocks_held,
            blocks=status.num_blocks,
            disk_free_bytes=disk_free_bytes,
        )


def free_bytes(folder: Path) -> int | None:
    """Return the room on the disk of a folder, or of what is above it where it does not exist yet."""
    for path in (folder, *folder.parents):
        try:
            return shutil.disk_usage(path).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
