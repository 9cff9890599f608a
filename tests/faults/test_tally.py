"""The counts of the fault table: what they must not overlook."""

from typing import Any

import pytest
from sqlalchemy import Engine, delete, update

from scripts.fault_table.postgresql import NoServer
from scripts.fault_table.rows import Row, RowFunction, RowResult, Scale, Trial, run_row
from scripts.fault_table.tally import Tally, count_jobs
from scripts.fault_table.world import RowFailed
from tests.sql.builders import claim_of, outcome_of
from worker.records import AttemptState
from worker.sql.database import writing
from worker.sql.store import JobStore
from worker.sql.tables import AttemptRow, ResultRow

IDS = [f"job-{number}" for number in range(4)]


@pytest.fixture
def all_done(store: JobStore) -> JobStore:
    claims = [claim_of(job_id) for job_id in IDS]
    store.begin_attempts(claims, "worker-1")
    store.finish_attempts([outcome_of(claim) for claim in claims])
    return store


def test_all_is_well(all_done: JobStore, database: Engine) -> None:
    tally = count_jobs(database, IDS)
    assert tally == Tally(accepted=4, done=4)
    assert tally.breaches == ()


def test_what_has_no_end_is_lost(all_done: JobStore, database: Engine) -> None:
    all_done.begin_attempts([claim_of("job-4")], "worker-1")
    tally = count_jobs(database, [*IDS, "job-4", "never-seen"])
    assert (tally.accepted, tally.done, tally.lost) == (6, 4, 2)
    assert tally.breaches == ("6 accepted, 4 ended, 2 lost",)


def test_result_that_is_gone_or_of_another_attempt_shows(all_done: JobStore, database: Engine) -> None:
    with writing(database) as connection:
        connection.execute(delete(ResultRow).where(ResultRow.job_id == IDS[0]))
    assert count_jobs(database, IDS).breaches == ("1 doubled",)


def test_second_generation_shows(all_done: JobStore, database: Engine) -> None:
    claim = claim_of("job-4", 1)
    again = claim_of("job-4", 2)
    all_done.begin_attempts([claim], "worker-1")
    all_done.begin_attempts([again], "worker-2")
    all_done.finish_attempts([outcome_of(claim)])  # stale: the fence rejects it
    all_done.finish_attempts([outcome_of(again)])
    tally = count_jobs(database, ["job-4"])
    assert tally == Tally(accepted=1, done=1, stale=1, reruns=1)
    with writing(database) as connection:
        connection.execute(update(AttemptRow).values(state=AttemptState.DONE))
    assert count_jobs(database, ["job-4"]).breaches == ("1 doubled",)


def result_of(function: RowFunction) -> RowResult:
    trial = Trial(Any, (), Scale(is_quick=True, num_seeds=1), lambda text: None)  # type: ignore[arg-type]
    return run_row(Row(1, "a fault", "an outcome", function), trial)


def raising(error: Exception) -> RowFunction:
    def run(trial: Trial) -> None:
        raise error

    return run


def test_row_is_right_only_where_nothing_is_wrong() -> None:
    assert result_of(lambda trial: trial.check(True, "wrong")).is_right
    assert result_of(lambda trial: trial.check(False, "wrong")).problems == ("wrong",)
    assert result_of(raising(RowFailed("late", "log"))).problems == ("late",)
    assert result_of(raising(KeyError("x"))).problems == ("KeyError: 'x'",)


def test_row_without_its_server_was_not_tried() -> None:
    result = result_of(raising(NoServer("none")))
    assert (result.missing, result.problems, result.is_right) == ("none", (), False)


def test_jobs_that_are_lost_are_a_problem_of_the_row() -> None:
    def lose(trial: Trial) -> None:
        trial.tally += Tally(accepted=2, done=1, lost=1)

    assert result_of(lose).problems == ("2 accepted, 1 ended, 1 lost",)
