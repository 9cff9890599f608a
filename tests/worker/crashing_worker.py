"""A worker process without torch that ends itself while a certain prompt is in the model's step. Run as a module."""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.step_plan import Sampled, SchedulerOutput
from tests.worker.fakes import ScriptedRunner, decode, make_flow
from worker.queue.connection import connect
from worker.running.crash_journal import journaling
from worker.sql.database import open_database
from worker.sql.store import JobStore

MARKER = "poison"


@dataclass
class DyingRunner(ScriptedRunner):
    """Kills its process in a step with a prompt that holds the marker."""

    def run(self, plan: SchedulerOutput) -> Mapping[str, Sampled]:
        for share in plan.scheduled:
            if MARKER in decode(share.request.token_ids):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().run(plan)


def main(redis_url: str, database_url: str, data_dir: str) -> None:
    """Drain the queue `default` in a burst."""
    name = f"worker-{os.getpid()}"
    connection, database = connect(redis_url, Path()), open_database(database_url)
    with journaling(Path(data_dir), name, redis_url) as journal:
        flow = make_flow(connection, JobStore(database), DyingRunner(), name=name, journal=journal, max_jobs=64)
        flow.run(burst=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
