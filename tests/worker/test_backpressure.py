"""Claims follow the engine's free blocks and seats: enough that it never waits, no more than it can soon use."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.request import Request, RequestFigures, RequestState, SamplingParams
from engine.status import EngineStatus
from engine.step_plan import Sampled, SchedulerOutput
from tests.worker.fakes import CONFIG, ENDLESS, ScriptedRunner, eventually, make_flow, running
from worker.client import submit
from worker.jobs import PromptJob
from worker.records import Claim, JobState
from worker.running.appetite import Appetite, prefix_hit_share
from worker.running.engine_loop import EngineLoop
from worker.running.held import HeldJob, HeldJobs
from worker.sql.store import JobStore

SHAPE = replace(CONFIG, num_blocks=100, max_num_seqs=16)  # a lookahead of 2 requests
STATUS = EngineStatus(0, 0, 0, 0, SHAPE.num_blocks, 0, 0, 0, 0)


def held_job(name: str, *, num_blocks: int, state: RequestState | None = None, hit_blocks: int = 0) -> HeldJob:
    """Return a tokenized job; the engine has its request where `state` is given."""
    now, prompt = datetime.now(UTC), [0] * (num_blocks * SHAPE.block_size)
    claim = Claim(name, f"x-{name}", 1, "default", PromptJob(prompt="hello"), "{}", now, now)
    job = HeldJob(claim, claimed_at=0.0, prompt=prompt)
    if state is not None:
        figures = RequestFigures(arrived_at=0.0)
        if state is RequestState.RUNNING:
            figures = RequestFigures(0.0, admitted_at=0.0, prefix_hit_tokens=hit_blocks * SHAPE.block_size)
        request = Request(
            request_id=claim.execution_id,
            tenant="default",
            token_ids=prompt,
            num_prompt_tokens=len(prompt),
            params=SamplingParams(max_tokens=8),
            stop_ids=frozenset(),
            figures=figures,
            state=state,
        )
        job.outputs = (request,)
    return job


def wanted(*jobs: HeldJob, blocks_held: int = 0) -> int:
    held = HeldJobs(1000)
    held.add(jobs)
    return Appetite(held, SHAPE, lambda: replace(STATUS, blocks_held=blocks_held)).num_jobs()


def test_a_worker_that_knows_no_job_yet_begins_with_a_few() -> None:
    assert wanted() == 2


def test_what_fits_is_claimed_and_a_few_more() -> None:
    running_job = held_job("a", num_blocks=10, state=RequestState.RUNNING)
    assert wanted(running_job, blocks_held=40) == 60 // 10 + 2
    waiting = held_job("b", num_blocks=10, state=RequestState.WAITING)
    assert wanted(running_job, waiting, blocks_held=40) == 50 // 10 + 2


@pytest.mark.parametrize("state", [None, RequestState.WAITING])
def test_nothing_is_claimed_while_the_backlog_needs_more_blocks_than_are_free(state: RequestState | None) -> None:
    backlog = [held_job(str(number), num_blocks=10, state=state) for number in range(3)]
    assert wanted(*backlog, blocks_held=71) == 0
    assert wanted(*backlog, blocks_held=70) == 2


def test_blocks_that_the_prefix_cache_will_give_are_not_counted() -> None:
    running_job = held_job("a", num_blocks=10, state=RequestState.RUNNING, hit_blocks=9)
    backlog = [held_job(str(number), num_blocks=10) for number in range(4)]
    assert prefix_hit_share([running_job, *backlog]) == pytest.approx(0.9)
    assert wanted(running_job, *backlog, blocks_held=90) == 6 + 2


def test_no_more_than_two_batches_are_held() -> None:
    jobs = [held_job(str(number), num_blocks=1, state=RequestState.RUNNING) for number in range(16)]
    backlog = [held_job(f"waiting {number}", num_blocks=1) for number in range(10)]
    assert wanted(*jobs, blocks_held=16) == 16
    assert wanted(*jobs, *backlog, blocks_held=16) == 6


def test_the_size_of_jobs_is_remembered_while_none_is_held() -> None:
    held = HeldJobs(1000)
    appetite = Appetite(held, SHAPE, lambda: STATUS)
    held.add([held_job("a", num_blocks=20)])
    appetite.num_jobs()
    held.remove(["x-a"])
    assert appetite.num_jobs() == 100 // 20 + 2


@given(
    backlog=st.lists(st.integers(1, 40), max_size=40),
    num_running=st.integers(0, 16),
    blocks_held=st.integers(0, SHAPE.num_blocks),
)
def test_an_idle_engine_is_fed_and_a_full_one_is_not_stuffed(
    backlog: list[int], num_running: int, blocks_held: int
) -> None:
    jobs = [held_job(f"r{number}", num_blocks=1, state=RequestState.RUNNING) for number in range(num_running)]
    jobs += [held_job(str(number), num_blocks=size) for number, size in enumerate(backlog)]
    num_jobs = wanted(*jobs, blocks_held=blocks_held)
    assert num_jobs >= 0
    assert len(jobs) + num_jobs <= max(2 * SHAPE.max_num_seqs, len(jobs))
    if not backlog:
        assert num_jobs > 0  # nothing waits in the engine: there is always something to claim
    if sum(backlog) > SHAPE.num_blocks - blocks_held:
        assert num_jobs == 0


@dataclass
class PatientRunner(ScriptedRunner):
    """Each step ends when the next full batch waits, as long as there are jobs for one."""

    loop: EngineLoop | None = None
    num_jobs: int = 0
    batch_sizes: list[int] = field(default_factory=list)

    def run(self, plan: SchedulerOutput) -> Mapping[str, Sampled]:
        self.batch_sizes.append(len(plan.scheduled))
        eventually(self._is_fed, "the engine is fed while it steps")
        return super().run(plan)

    def _is_fed(self) -> bool:
        assert self.loop is not None
        to_come = self.num_jobs - sum(self.batch_sizes)  # each request takes one step
        num_waiting = self.loop.engine.status().num_waiting + self.loop._commands.qsize()
        return num_waiting >= min(to_come, self.loop.engine.config.max_num_seqs)


def test_a_full_batch_is_followed_by_a_full_batch(connection: redis.Redis, sqlite_store: JobStore) -> None:
    """While a step runs, jobs are claimed for the next one: no seat stays empty for want of a claim."""
    ids = submit(connection, [f"{number:02}" for number in range(40)])
    runner = PatientRunner(reply=lambda _: "", num_jobs=40)
    flow = make_flow(connection, sqlite_store, runner, config=replace(CONFIG, max_num_seqs=4))
    runner.loop = flow._loop
    flow.run(burst=True)
    assert set(sqlite_store.states(ids).values()) == {JobState.DONE}
    assert set(runner.batch_sizes[1:-1]) == {4}


def test_jobs_that_the_engine_cannot_run_now_are_left_to_other_workers(
    connection: redis.Redis, sqlite_store: JobStore
) -> None:
    """A cache of 24 blocks, prompts of 8: three run, and the backlog stays within what would fit and the lookahead."""
    config = EngineConfig(num_blocks=24, max_model_len=160, max_num_seqs=16)
    prompts = [{"prompt": f"{ENDLESS} {number:02}".ljust(128, "."), "max_tokens": 30} for number in range(40)]
    ids = submit(connection, prompts)
    first, second = ScriptedRunner(), ScriptedRunner()
    first.may_step.clear()
    flow = make_flow(connection, sqlite_store, first, config=config)
    with running(flow) as worker:
        appetite = Appetite(flow._held, config, flow._loop.engine.status)
        eventually(lambda: flow.progress().held and not appetite.num_jobs(), "the worker has enough")
        assert flow.progress().held < 16
        make_flow(connection, sqlite_store, second, config=config, name="worker-2").run(burst=True)
        first.may_step.set()
        eventually(lambda: set(sqlite_store.states(ids).values()) == {JobState.DONE})
        worker.stop()
    assert sum(second.generations.values()) >= 24
    assert sum((first.generations + second.generations).values()) >= 40
