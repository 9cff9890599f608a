"""Schedulers on a real queue and both databases: what fires, what is skipped, and who does it."""

import re
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from rq import Queue
from sqlalchemy import Engine, func, select, update

from scripts.fault_table.proxy import proxying
from tests.cron.conftest import START, Schedulers, WriteJobs, schedule_of
from worker.cron.actions import ActionKind, dump_action, job_id, make_action
from worker.cron.firing import MOST_DEATHS
from worker.cron.leader import LEASE, Leadership, NotLeader, current_leader
from worker.cron.planning import plan
from worker.cron.records import MissedPolicy, OverlapPolicy, RunKind, RunState
from worker.cron.run_store import CLAIM, Fenced, RunStore
from worker.errors import PagemillError
from worker.queue.connection import connect
from worker.records import JobState
from worker.sql.database import reading, writing
from worker.sql.store import JobStore
from worker.sql.tables import JobRow

HOUR = 3600.0


def queued(connection: redis.Redis, queue: str = "default") -> list[str]:
    return Queue(queue, connection=connection).job_ids


def num_jobs(database: Engine) -> int:
    with reading(database) as connection:
        return connection.scalar(select(func.count()).select_from(JobRow)) or 0


def test_slot_becomes_a_job_in_sql_and_in_the_queue(schedulers: Schedulers) -> None:
    action = make_action(ActionKind.PROMPT, job={"prompt": "Hello.", "max_tokens": 5}, deadline_seconds=60.0)
    schedulers.add(schedule_of(action=dump_action(action), queue="bulk", tenant="acme"))
    scheduler = schedulers.scheduler()
    schedulers.tick(scheduler)
    assert schedulers.history() == ()
    schedulers.clock.move(31)
    schedulers.tick(scheduler)
    schedulers.tick(scheduler)
    (detail,) = schedulers.history()
    assert (detail.schedule, detail.run.state, detail.run.num_jobs) == ("nightly", RunState.SUBMITTED, 1)
    assert (detail.run.slot_at, detail.run.opened_at) == (START.replace(minute=1, second=0), schedulers.clock())
    assert detail.jobs == {JobState.QUEUED: 1}
    expected = job_id(detail.run.id, 0)
    assert queued(schedulers.connection, "bulk") == [expected]
    job = JobStore(schedulers.database).job(expected)
    assert job is not None
    assert (job.batch_id, job.tenant, job.queue) == ("nightly.20260301T1201Z", "acme", "bulk")
    assert job.deadline_at == schedulers.clock() + timedelta(seconds=60)


def test_many_schedulers_at_once_fire_each_slot_once(schedulers: Schedulers) -> None:
    for name in ("a", "b", "c"):
        schedulers.add(schedule_of(name))
    every = [schedulers.scheduler(f"scheduler-{number}") for number in range(4)]
    for _ in range(5):
        schedulers.clock.move(60)
        threads = [threading.Thread(target=schedulers.tick, args=(scheduler,)) for scheduler in every]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # What a scheduler found locked, it finds again.
    for scheduler in every:
        schedulers.tick(scheduler)
    history = schedulers.history()
    assert len(history) == len({(detail.schedule, detail.run.slot_at) for detail in history}) == 15
    assert {detail.run.state for detail in history} == {RunState.SUBMITTED}
    assert num_jobs(schedulers.database) == 15
    assert sorted(queued(schedulers.connection)) == sorted(job_id(detail.run.id, 0) for detail in history)


def test_one_leads_until_it_is_silent_and_its_late_writes_are_fenced(schedulers: Schedulers) -> None:
    schedule = schedulers.add(schedule_of())
    first, second = schedulers.scheduler("first"), schedulers.scheduler("second")
    stale = Leadership(schedulers.database, "first")
    assert stale.hold(schedulers.clock())
    schedulers.tick(second)
    assert holder(schedulers) == "first"
    schedulers.clock.move(LEASE.total_seconds() + 1)
    schedulers.tick(second)
    assert holder(schedulers) == "second"
    schedulers.clock.move(60)
    with pytest.raises(NotLeader):
        schedulers.schedules.open_runs(schedule, plan(schedule, schedulers.clock()), schedulers.clock(), stale)
    assert schedulers.history() == ()
    schedulers.tick(first)  # the second one's lease is over by now
    assert holder(schedulers) == "first"
    schedulers.tick(second)
    assert schedulers.states() == [("12:01", "submitted")]


def holder(schedulers: Schedulers) -> str | None:
    leader = current_leader(schedulers.database)
    return None if leader is None else leader.holder


def test_leader_that_ends_in_order_is_followed_at_once(schedulers: Schedulers) -> None:
    schedulers.add(schedule_of())
    first, second = schedulers.scheduler("first"), schedulers.scheduler("second")
    schedulers.tick(first)
    first.close(1.0)
    schedulers.tick(second)
    assert holder(schedulers) == "second"


def test_clock_that_is_set_back_doubles_nothing_and_keeps_nobody_waiting(schedulers: Schedulers) -> None:
    schedulers.add(schedule_of(expression="0,30 * * * *"))
    first, second = schedulers.scheduler("first"), schedulers.scheduler("second")
    schedulers.clock.move(2 * HOUR)  # 14:00:30
    schedulers.tick(first)
    assert schedulers.states() == [("12:30", "missed"), ("14:00", "submitted")]
    schedulers.clock.move(-HOUR)
    schedulers.tick(second)
    assert holder(schedulers) == "second"  # not only once the clock is where it was
    schedulers.clock.move(HOUR)
    schedulers.tick(second)
    schedulers.clock.move(HOUR / 2)
    schedulers.tick(second)
    assert schedulers.states() == [("12:30", "missed"), ("14:00", "submitted"), ("14:30", "submitted")]
    assert num_jobs(schedulers.database) == 2


def test_down_time_is_told_in_one_line(schedulers: Schedulers, caplog: pytest.LogCaptureFixture) -> None:
    schedulers.add(schedule_of(missed=MissedPolicy.SKIP, grace_seconds=30.0))
    schedulers.clock.move(HOUR)
    schedulers.tick(schedulers.scheduler())
    missed, fired = schedulers.history()
    assert (missed.run.num_slots, missed.run.skip_reason) == (59, "missed")
    assert f"{missed.run.last_slot_at:%H:%M}" == "12:59"
    assert (fired.run.state, f"{fired.run.slot_at:%H:%M}") == (RunState.SUBMITTED, "13:00")
    assert "and 58 more, to 2026-03-01 12:59:00+00:00, was skipped (missed)" in caplog.text


def test_slot_that_overlaps_is_skipped_until_the_jobs_have_ended(schedulers: Schedulers) -> None:
    schedulers.add(schedule_of(overlap=OverlapPolicy.SKIP))
    scheduler = schedulers.scheduler()
    for _ in range(2):
        schedulers.clock.move(60)
        schedulers.tick(scheduler)
    assert schedulers.states() == [("12:01", "submitted"), ("12:02", "overlap")]
    assert schedulers.history()[1].run.message == "jobs of batch nightly.20260301T1201Z have not ended"
    with writing(schedulers.database) as connection:
        connection.execute(update(JobRow).values(state=JobState.DONE))
    schedulers.clock.move(60)
    schedulers.tick(scheduler)
    assert schedulers.states()[-1] == ("12:03", "submitted")


def test_pause_and_what_it_skipped(schedulers: Schedulers) -> None:
    schedulers.add(schedule_of())
    scheduler = schedulers.scheduler()
    schedulers.schedules.pause("nightly", schedulers.clock())
    schedulers.clock.move(150)
    schedulers.tick(scheduler)
    assert schedulers.history() == ()
    resumed = schedulers.schedules.resume("nightly", schedulers.clock())
    assert f"{resumed.next_slot_at:%H:%M}" == "12:04"
    schedulers.clock.move(60)
    schedulers.tick(scheduler)
    assert schedulers.states() == [("12:01", "paused"), ("12:04", "submitted")]
    assert schedulers.history()[0].run.num_slots == 3


def test_removed_schedule_leaves_its_history_and_its_name(schedulers: Schedulers) -> None:
    schedulers.add(schedule_of())
    schedulers.clock.move(60)
    schedulers.tick(schedulers.scheduler())
    with pytest.raises(PagemillError, match="there is a schedule nightly already"):
        schedulers.add(schedule_of(id="another"))
    schedulers.schedules.remove("nightly", schedulers.clock())
    schedulers.clock.move(60)
    schedulers.tick(schedulers.scheduler())
    assert schedulers.states() == [("12:01", "submitted")]
    schedulers.add(schedule_of(id="another"))
    assert [schedule.id for schedule in schedulers.schedules.schedules(removed=True)] == ["id-nightly", "another"]


def test_schedule_whose_end_has_come_is_over(schedulers: Schedulers) -> None:
    schedulers.add(schedule_of(ends_at=START + timedelta(seconds=90)))
    for _ in range(4):
        schedulers.clock.move(60)
        schedulers.tick(schedulers.scheduler())
    assert schedulers.states() == [("12:01", "submitted"), ("12:02", "submitted")]
    assert not schedulers.schedules.any_active()


def test_file_of_jobs_is_read_when_it_fires(schedulers: Schedulers, write_jobs: WriteJobs) -> None:
    path = write_jobs(3)
    action = make_action(ActionKind.JSONL, path=str(path), defaults={"max_tokens": 7})
    schedulers.add(schedule_of(action=dump_action(action)))
    path = write_jobs(1200)
    schedulers.clock.move(60)
    schedulers.tick(schedulers.scheduler())
    (detail,) = schedulers.history()
    assert (detail.run.num_jobs, detail.run.num_submitted, detail.jobs) == (1200, 1200, {JobState.QUEUED: 1200})
    ids = [job_id(detail.run.id, index) for index in range(1200)]
    assert queued(schedulers.connection) == ids
    job = JobStore(schedulers.database).job(ids[1199])
    assert job is not None
    assert (job.custom_id, job.batch_id) == ("1199", detail.run.batch_id)
    assert '"max_tokens": 7' in job.payload


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": ""}\n{"x": 1}\n', "line 2: prompt: is empty; .*and 1 more faults"),
        ('{"prompt": "a", "batch_id": "mine"}\n', "line 1: batch_id: is the run's own; leave it out"),
        ("\n", "jobs.jsonl: holds no jobs"),
        (None, "jobs.jsonl is not there"),
    ],
)
def test_file_with_a_fault_fails_its_run_and_submits_nothing(
    schedulers: Schedulers, write_jobs: WriteJobs, text: str | None, message: str
) -> None:
    path = write_jobs(0)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    schedulers.add(schedule_of(action=dump_action(make_action(ActionKind.JSONL, path=str(path)))))
    schedulers.clock.move(60)
    schedulers.tick(schedulers.scheduler())
    (detail,) = schedulers.history()
    assert detail.run.state is RunState.FAILED
    assert re.search(message, detail.run.message or "")
    assert num_jobs(schedulers.database) == 0


def test_run_waits_for_redis_and_then_goes_on(schedulers: Schedulers, write_jobs: WriteJobs, tmp_path: Path) -> None:
    action = dump_action(make_action(ActionKind.JSONL, path=str(write_jobs(600))))
    schedulers.add(schedule_of(action=action))
    schedulers.clock.move(60)
    server = schedulers.connection.connection_pool.connection_kwargs["server"]
    with (
        proxying(server.paths.socket_path, tmp_path / "proxy.sock") as proxy,
        closing(connect(proxy.url, Path())) as away,
    ):
        scheduler = schedulers.scheduler(connection=away)
        proxy.cut()
        schedulers.tick(scheduler)
        (detail,) = schedulers.history()
        assert (detail.run.state, detail.run.num_failures, detail.run.num_submitted) == (RunState.FIRING, 1, 0)
        assert "Redis" in (detail.run.message or "")
        proxy.mend()
        schedulers.tick(scheduler)
        assert schedulers.history()[0].run.state is RunState.FIRING  # it rests for a second
        schedulers.clock.move(2)
        schedulers.tick(scheduler)
    (detail,) = schedulers.history()
    assert (detail.run.state, detail.run.num_submitted, detail.run.message) == (RunState.SUBMITTED, 600, None)
    assert len(queued(schedulers.connection)) == num_jobs(schedulers.database) == 600


def test_scheduler_that_stops_leaves_the_rest_to_the_next(schedulers: Schedulers, write_jobs: WriteJobs) -> None:
    schedulers.add(schedule_of(action=dump_action(make_action(ActionKind.JSONL, path=str(write_jobs(10))))))
    schedulers.clock.move(60)
    schedulers.is_stopped = True
    schedulers.tick(schedulers.scheduler("first"))
    assert schedulers.history()[0].run.state is RunState.FIRING
    schedulers.is_stopped = False
    schedulers.clock.move(LEASE.total_seconds() + 1)
    schedulers.tick(schedulers.scheduler("second"))
    (detail,) = schedulers.history()
    assert (detail.run.state, detail.run.epoch, len(queued(schedulers.connection))) == (RunState.SUBMITTED, 2, 10)


def test_file_that_changes_in_the_middle_of_a_run_fails_it(schedulers: Schedulers, write_jobs: WriteJobs) -> None:
    schedule = schedulers.add(schedule_of(action=dump_action(make_action(ActionKind.JSONL, path=str(write_jobs(3))))))
    schedulers.schedules.open_manual(schedule, "died", schedulers.clock())
    runs = RunStore(schedulers.database)
    schedulers.clock.move(CLAIM.total_seconds() + 1)
    (run_id,) = runs.claimable(schedulers.clock(), 10)
    claimed = runs.claim(run_id, "died too", schedulers.clock())
    assert claimed is not None
    runs.settle(claimed[0], 3, "another digest")
    schedulers.clock.move(CLAIM.total_seconds() + 1)
    schedulers.tick(schedulers.scheduler())
    detail = next(detail for detail in schedulers.history() if detail.run.kind is RunKind.MANUAL)
    assert detail.run.state is RunState.FAILED
    assert "was changed while it was being submitted: 0 of 3 jobs" in (detail.run.message or "")


def test_run_that_another_took_over_is_fenced(schedulers: Schedulers) -> None:
    schedule = schedulers.add(schedule_of())
    run = schedulers.schedules.open_manual(schedule, "first", schedulers.clock())
    runs = RunStore(schedulers.database)
    assert runs.claim(run.id, "second", schedulers.clock()) is None
    schedulers.clock.move(CLAIM.total_seconds() + 1)
    claimed = runs.claim(run.id, "second", schedulers.clock())
    assert claimed is not None
    writes: tuple[Callable[[], None], ...] = (
        lambda: runs.keep(run, schedulers.clock()),
        lambda: runs.record(run, [], 0, schedulers.clock()),
        lambda: runs.end(run, RunState.SUBMITTED, schedulers.clock()),
        lambda: runs.put_off(run, "late", schedulers.clock()),
    )
    for write in writes:
        with pytest.raises(Fenced):
            write()
    runs.end(claimed[0], RunState.SUBMITTED, schedulers.clock())
    assert runs.run(run.id).claimed_by == "second"


def test_schedule_that_cannot_be_read_holds_up_no_other(
    schedulers: Schedulers, caplog: pytest.LogCaptureFixture
) -> None:
    schedulers.add(schedule_of("odd", time_zone="Mars/Phobos", next_slot_at=START))
    schedulers.add(schedule_of("newer", action='{"kind": "later"}'))
    schedulers.add(schedule_of("well"))
    schedulers.clock.move(60)
    scheduler = schedulers.scheduler()
    schedulers.tick(scheduler)
    schedulers.tick(scheduler)
    states = {detail.schedule: detail.run.state for detail in schedulers.history()}
    assert states == {"newer": RunState.FAILED, "well": RunState.SUBMITTED}
    assert caplog.text.count("schedule odd cannot fire on this machine: time zone: 'Mars/Phobos' is not known") == 1


def test_run_that_ends_schedulers_is_given_up(schedulers: Schedulers) -> None:
    schedule = schedulers.add(schedule_of())
    run = schedulers.schedules.open_manual(schedule, "dies", schedulers.clock())
    runs = RunStore(schedulers.database)
    for _ in range(MOST_DEATHS - 1):
        schedulers.clock.move(CLAIM.total_seconds() + 1)
        assert runs.claim(run.id, "dies too", schedulers.clock()) is not None
    schedulers.clock.move(CLAIM.total_seconds() + 1)
    schedulers.tick(schedulers.scheduler())
    given_up = runs.run(run.id)
    assert given_up.state is RunState.FAILED
    assert given_up.message == "5 schedulers died while they submitted it; it is not tried again"
