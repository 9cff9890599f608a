"""`pagemill db rollup` and `db purge`."""

import json
from datetime import UTC, datetime, timedelta

from tests.cli.conftest import Run
from tests.sql.builders import START, claim_of, outcome_of
from worker.records import AttemptState, JobState
from worker.sql.database import open_database
from worker.sql.store import JobStore


def finished(environ: dict[str, str], *, ago: timedelta = timedelta(days=2)) -> JobStore:
    """A store with a job that was done so long ago and one that failed: a roll-up goes through all hours since."""
    store = JobStore(open_database(environ["PAGEMILL_DATABASE_URL"]))
    claims = [claim_of("old", prompt="Why?"), claim_of("failed")]
    store.begin_attempts(claims, "w1")
    at_s = (datetime.now(UTC) - ago - START).total_seconds()
    store.finish_attempts([outcome_of(claims[0], at_s=at_s), outcome_of(claims[1], AttemptState.FAILED, at_s=at_s)])
    return store


def test_rollup_says_what_it_counted(run: Run, environ: dict[str, str]) -> None:
    finished(environ)
    result = run("db", "rollup")
    assert result.output.startswith("rolled up 2 jobs of ")
    assert json.loads(run("db", "rollup", "--all", "--json").stdout) == {"hours": 0, "jobs": 0, "hours_again": 0}


def test_purge_asks_and_deletes(run: Run, environ: dict[str, str]) -> None:
    store = finished(environ)
    assert run("db", "purge", "--older-than", "1d", "--dry-run").stdout == "would purge 2 jobs\n"
    assert run("db", "purge", "--older-than", "1d").exit_code == 1  # nobody says yes
    assert store.states(["old"]) == {"old": JobState.DONE}
    assert run("db", "purge", "--older-than", "1d", "--yes").stdout == "purged 2 jobs\n"
    assert store.states(["old", "failed"]) == {}
    assert '"jobs": 0' in run("db", "purge", "--older-than", "1d", "--json").stdout
    assert json.loads(run("report", "--json").stdout)["jobs_by_state"]["done"] == 1


def test_purged_texts_are_told_of(run: Run, environ: dict[str, str]) -> None:
    finished(environ)
    assert run("db", "purge", "--older-than", "1d", "--texts-only", "--yes").stdout == "purged the texts of 2 jobs\n"
    shown = run("show", "old")
    assert "Prompt and output were purged." in shown.stdout
    assert "Why?" not in shown.stdout
    output = run("show", "old", "--output")
    assert (output.exit_code, output.stderr) == (2, "error: the output of job old was purged\n")
    retried = run("retry", "failed")
    assert retried.exit_code == 1
    assert "no prompt" in retried.stdout


def test_recent_jobs_stay_and_are_told_of(run: Run, environ: dict[str, str]) -> None:
    finished(environ, ago=timedelta())
    soon = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    result = run("db", "purge", "--older-than", soon, "--yes")
    assert result.stdout == "purged 0 jobs\n"
    assert "2 more ended within the last hour" in result.stderr
