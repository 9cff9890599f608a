"""`pagemill ledger`, and what `show` says of an attempt's cost."""

import json
import re
from dataclasses import replace
from datetime import timedelta

from tests.cli.conftest import CannedWorker, Run
from tests.cli.test_jobs import submit
from tests.sql.builders import worker_of
from tests.sql.test_usage import ACCOUNT, USAGE
from worker.records import AttemptState, Outcome
from worker.sql.fleet import WorkerCounters
from worker.sql.store import JobStore


def run_one_job(run: Run, worker: CannedWorker, price: float | None) -> str:
    """Have a job done that costs what USAGE says, by a worker whose account is ACCOUNT; return its id."""
    currency = None if price is None else "EUR"
    worker.store.register_worker(worker_of("canned", price_per_engine_hour=price, price_currency=currency))
    job_id = submit(run)
    (claim,) = worker.claim()
    outcome = Outcome(
        claim=claim,
        state=AttemptState.DONE,
        ended_at=claim.claimed_at,
        text="an answer",
        token_ids=(1,),
        finish_reason="stop",
        prompt_tokens=1,
        completion_tokens=1,
        error_code=None,
        error_message=None,
        stats=None,
        usage=USAGE,
    )
    worker.store.finish_attempts([outcome])
    worker.store.heartbeat_worker("canned", WorkerCounters(), timedelta(), (replace(ACCOUNT, engine_seconds=18.0),))
    return job_id


def test_show_says_what_an_attempt_cost_and_where_its_time_went(run: Run, canned_worker: CannedWorker) -> None:
    job_id = run_one_job(run, canned_worker, price=3.6)
    shown = run("show", job_id).stdout
    assert re.search(r"done +18 +2 +40.5 +900 +100 +0.018 EUR", shown)
    assert re.search(r"done +3 +1.5 +75.5 +820 +5\n", shown)
    (attempt,) = json.loads(run("show", job_id, "--json").stdout)["attempts"]
    assert attempt["usage"]["engine_seconds"] == 18.0
    assert (round(attempt["cost"], 9), attempt["currency"]) == (0.018, "EUR")


def test_attempt_that_runs_has_no_cost_yet(run: Run, canned_worker: CannedWorker) -> None:
    job_id = submit(run)
    canned_worker.claim()
    shown = run("show", job_id).stdout
    assert "running" in shown
    assert "Cost:" not in shown


def test_ledger_shows_where_the_time_went(run: Run, canned_worker: CannedWorker) -> None:
    run_one_job(run, canned_worker, price=3.6)
    shown = run("ledger")
    assert shown.exit_code == 0
    assert re.search(r"canned +3,600 +18 +0 +3,500 +60 +10 +2 +0.5% +3.6 EUR", shown.stdout)
    assert re.search(r"canned +2,048 +40.5 +9.5 +5 +145 +25.0%", shown.stdout)
    (balance,) = json.loads(run("ledger", "--json").stdout)
    assert balance["attempt_engine_seconds"] == 18.0
    assert balance["unattributed_engine_seconds"] == 0.0


def test_ledger_without_workers_or_prices(run: Run, canned_worker: CannedWorker, store: JobStore) -> None:
    assert run("ledger").exit_code == 0
    assert json.loads(run("ledger", "--json").stdout) == []
    run_one_job(run, canned_worker, price=None)
    assert re.search(r"canned .* 0.5% +-\n", run("ledger").stdout)
    assert json.loads(run("ledger", "--since", "1h", "--json").stdout)[0]["cost"] is None
    assert json.loads(run("ledger", "--since", "2999-01-01", "--json").stdout) == []
