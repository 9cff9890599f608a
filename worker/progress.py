"""What a running worker tells whoever watches it. Plain values, read from any thread."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """A snapshot; counters are since the worker started."""

    waiting: Mapping[str, int]  # queue -> jobs that nobody has claimed
    held: int  # claimed, not yet acknowledged
    running: int  # requests in the engine's steps
    jobs_done: int
    jobs_failed: int
    output_tokens: int  # of running requests too
    blocks_held: int
    blocks_cached: int
    num_blocks: int

    @property
    def jobs_ended(self) -> int:
        """Jobs that are done or failed."""
        return self.jobs_done + self.jobs_failed

    @property
    def jobs_known(self) -> int:
        """Jobs that have ended, are held or wait."""
        return self.jobs_ended + self.held + sum(self.waiting.values())


ReadProgress = Callable[[], WorkerProgress]
# A panel shows progress for as long as its context lasts; the worker enters it around its work.
Panel = Callable[[ReadProgress], AbstractContextManager[object]]
