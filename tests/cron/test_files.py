"""Files of requests in OpenAI's batch format, submitted by schedules."""

import json
from pathlib import Path

import redis
from rq import Queue

from tests.cron.conftest import Schedulers, schedule_of
from worker.batch.store import BatchStore
from worker.cron.actions import ActionKind, dump_action, make_action
from worker.cron.records import RunState
from worker.cron.run_store import CLAIM, RunStore
from worker.records import JobState


def write_requests(path: Path, count: int, *more: str) -> None:
    lines = (
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "any", "messages": [{"role": "user", "content": f"Question {number}"}]},
        }
        for number in range(count)
    )
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "".join(f"{line}\n" for line in more))


def test_batch_file_becomes_the_runs_batch(schedulers: Schedulers, connection: redis.Redis, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    write_requests(path, 4, "no JSON")
    action = make_action(ActionKind.BATCH, path=str(path), max_tokens=5, model="scripted", deadline_seconds=3600.0)
    schedulers.add(schedule_of(action=dump_action(action)))
    schedulers.clock.move(60)
    schedulers.tick(schedulers.scheduler())
    (detail,) = schedulers.history()
    assert (detail.run.state, detail.run.num_jobs, detail.jobs) == (RunState.SUBMITTED, 4, {JobState.QUEUED: 4})
    batch_id = "nightly.20260301T1201Z"
    told = f"1 of 5 lines are at fault; `pagemill batch results {batch_id}` has them"
    assert (detail.run.batch_id, detail.run.message) == (batch_id, told)
    status = BatchStore(schedulers.database).status(batch_id)
    assert status is not None
    assert (status.batch.window_seconds, status.counts.total, status.counts.failed) == (3600, 5, 1)
    assert len(Queue("default", connection=connection).job_ids) == 4


def test_batch_that_was_interrupted_goes_on(schedulers: Schedulers, connection: redis.Redis, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    write_requests(path, 600)
    schedule = schedulers.add(schedule_of(action=dump_action(make_action(ActionKind.BATCH, path=str(path)))))
    schedulers.clock.move(60)
    schedulers.is_stopped = True
    schedulers.tick(schedulers.scheduler())
    assert schedulers.history()[0].run.state is RunState.FIRING
    schedulers.is_stopped = False
    schedulers.clock.move(CLAIM.total_seconds() + 1)
    schedulers.tick(schedulers.scheduler("next"))
    (detail,) = schedulers.history()
    assert (detail.run.state, detail.run.num_submitted, detail.jobs) == (
        RunState.SUBMITTED,
        600,
        {JobState.QUEUED: 600},
    )
    assert len(Queue("default", connection=connection).job_ids) == 600
    run = schedulers.schedules.open_manual(schedule, "again", schedulers.clock())
    path.write_text("nothing\n")
    schedulers.clock.move(CLAIM.total_seconds() + 1)
    schedulers.tick(schedulers.scheduler("next"))
    failed = RunStore(schedulers.database).run(run.id)
    assert failed.state is RunState.FAILED
    assert "none of its 1 lines can be served; line 1" in (failed.message or "")


def test_collection_that_is_not_there_fails_its_run(schedulers: Schedulers, tmp_path: Path) -> None:
    schedulers.add(schedule_of(action=dump_action(make_action(ActionKind.RAG, collection="nothing", index=True))))
    schedulers.clock.move(60)
    schedulers.tick(schedulers.scheduler())
    (detail,) = schedulers.history()
    assert detail.run.state is RunState.FAILED
    assert "nothing" in (detail.run.message or "")
