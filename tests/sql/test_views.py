"""The views: what they say of known jobs, that docs/sql.md names their columns, and that changes by hand are found."""

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, inspect, select, text, update

from tests.sql.builders import after, claim_of, outcome_of, stats_of, worker_of
from tests.sql.history import NOW, write_history
from worker.errors import ConfigurationError
from worker.records import AttemptState
from worker.sql import schema
from worker.sql.database import open_database, reading, writing
from worker.sql.reporting import Dimension, ReportFilter, Reports
from worker.sql.rollups.rolling import Roller
from worker.sql.store import JobStore
from worker.sql.tables import AttemptRow, HourlyTotalsRow, WorkerRow
from worker.sql.views import views

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "sql.md"
NAMES = [view.name for view in views("sqlite")]


def rows(database: Engine, query: str) -> list[dict[str, Any]]:
    with reading(database) as connection:
        return [dict(row) for row in connection.execute(text(query)).mappings()]


def documented_columns() -> dict[str, list[str]]:
    """Return the columns that docs/sql.md tells of, by view."""
    sections = re.split(r"^### `(\w+)`$", DOCUMENT.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {
        name: re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE)
        for name, body in zip(sections[::2], sections[1::2], strict=True)
    }


def test_document_names_exactly_the_columns(database: Engine) -> None:
    documented = documented_columns()
    with reading(database) as connection:
        inspector = inspect(connection)
        assert sorted(inspector.get_view_names()) == sorted(NAMES)
        for name in NAMES:
            assert documented[name] == [column["name"] for column in inspector.get_columns(name)], name


def examples() -> list[str]:
    """Return the queries of the document."""
    blocks = re.findall(r"^```sql\n(.*?)^```", DOCUMENT.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [query.rstrip(";") for block in blocks for query in block.strip().split(";\n")]


def test_examples_of_the_document_run(database: Engine) -> None:
    for query in examples():
        if database.dialect.name == "postgresql":
            query = query.replace("datetime('now', '-1 day')", "now() - interval '1 day'")
        assert rows(database, query) == []


def test_percentiles_of_the_document_are_those_of_the_report(database: Engine, store: JobStore) -> None:
    write_history(store, database)
    (query,) = [query for query in examples() if "FROM histograms" in query]
    now = NOW.replace(hour=0, minute=30)  # whole days are all that is rolled up
    Roller(database, now=lambda: now).run()
    reported = Reports(database, exact_jobs=0).latency(
        ReportFilter(until=now - timedelta(minutes=30)), (Dimension.QUEUE,)
    )
    expected = {row.group[0]: row.p99 for row in reported if row.metric == "ttft_ms"}
    assert len(expected) == 2
    assert {row["queue"]: float(row["p99_ms"]) for row in rows(database, query)} == pytest.approx(expected)


@pytest.fixture
def known_jobs(store: JobStore, database: Engine) -> None:
    """Three jobs of a batch that are done, one of them at its second attempt; one that failed; one that runs."""
    store.register_worker(worker_of("w1"))
    claims = [
        claim_of(name, queue="bulk", tenant="acme", model="m", batch_id="night", at_s=10.0) for name in ("a", "b", "c")
    ]
    failed = claim_of("failed", queue="high", tenant="other", model="m")
    store.begin_attempts([*claims, failed, claim_of("running", queue="high", tenant="other", model="m")], "w1")
    store.finish_attempts([outcome_of(claims[2], AttemptState.REQUEUED)])
    again = claim_of("c", 2, queue="bulk", tenant="acme", model="m", batch_id="night", at_s=30.0)
    store.begin_attempts([again], "w1")
    ttfts = zip([claims[0], claims[1], again], (10.0, 20.0, 30.0), strict=True)
    store.finish_attempts(
        [
            *(
                outcome_of(claim, at_s=40.0, stats=stats_of(ttft_ms=ttft, kv_block_seconds_limit=7.0), prompt_tokens=32)
                for claim, ttft in ttfts
            ),
            outcome_of(failed, AttemptState.FAILED, at_s=4000.0, error_code="context_length", error_message="too long"),
        ]
    )
    usage = {
        "engine_seconds": 1.5,
        "wasted_engine_seconds": 0.25,
        "kv_block_seconds_share": 2.5,
        "computed_tokens": 40,
        "recomputed_tokens": 8,
    }
    with writing(database) as connection:
        connection.execute(update(AttemptRow).where(AttemptRow.state != AttemptState.RUNNING).values(usage))
        connection.execute(update(WorkerRow).values(price_per_engine_hour=7200.0, price_currency="EUR"))


def only(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    (row,) = found
    return row


@pytest.mark.usefixtures("known_jobs")
def test_job_facts(database: Engine) -> None:
    facts = only(rows(database, "SELECT * FROM job_facts WHERE job_id = 'c'"))
    assert (facts["state"], facts["attempts"], facts["batch_id"], facts["ttft_ms"]) == ("done", 2, "night", 30.0)
    assert (facts["prompt_tokens"], facts["worker_name"], facts["engine_seconds"]) == (32, "w1", 3.0)
    assert (facts["cost"], facts["kv_block_seconds_share"]) == (pytest.approx(6.0), 2.5)
    assert len(rows(database, "SELECT * FROM job_facts")) == 5


@pytest.mark.usefixtures("known_jobs")
def test_throughput_is_by_the_hour_of_the_end(database: Engine) -> None:
    early, late = rows(database, "SELECT * FROM hourly_throughput ORDER BY hour")
    assert [str(row["hour"])[:19] for row in (early, late)] == ["2026-03-01 12:00:00", "2026-03-01 13:00:00"]
    assert (early["queue"], early["jobs"], early["jobs_done"], early["prompt_tokens"]) == ("bulk", 3, 3, 96)
    assert early["completion_tokens_per_s"] == pytest.approx(9 / 3600)
    assert (late["queue"], late["jobs"], late["jobs_failed"], late["completion_tokens"]) == ("high", 1, 1, 0)
    at = after(0).replace(minute=0, second=0, microsecond=0)
    with reading(database) as connection:  # the form in which the database keeps times
        in_that_hour = text("SELECT jobs FROM hourly_throughput WHERE hour = :at")
        form = at.strftime("%Y-%m-%d %H:%M:%S.%f") if database.dialect.name == "sqlite" else at
        assert connection.scalar(in_that_hour, {"at": form}) == 3


@pytest.mark.usefixtures("known_jobs")
def test_percentiles_of_every_dimension(database: Engine) -> None:
    found = rows(database, "SELECT * FROM latency_percentiles WHERE metric = 'ttft_ms' ORDER BY dimension")
    assert [(row["dimension"], row["value"]) for row in found] == [
        ("batch", "night"),
        ("model", "m"),
        ("queue", "bulk"),
        ("tenant", "acme"),
    ]
    for row in found:
        assert (row["jobs"], row["mean_ms"], row["max_ms"]) == (3, pytest.approx(20.0), 30.0)
        assert (row["p50_ms"], row["p90_ms"], row["p95_ms"], row["p99_ms"]) == (20.0, 30.0, 30.0, 30.0)


@pytest.mark.usefixtures("known_jobs")
def test_memory_prefix_and_failures(database: Engine) -> None:
    memory = only(rows(database, "SELECT * FROM memory_use"))
    assert (memory["jobs"], memory["kv_blocks_peak_max"], memory["kv_block_seconds"]) == (3, 7, 10.5)
    assert (memory["kv_block_seconds_limit"], memory["saved_against_limit_block_seconds"]) == (21.0, 10.5)
    assert memory["saved_against_limit_share"] == 0.5
    assert memory["saved_by_sharing_block_seconds"] == 3.0
    assert memory["saved_by_sharing_share"] == pytest.approx(3.0 / 10.5)
    prefix = only(rows(database, "SELECT * FROM prefix_savings"))
    assert (prefix["jobs_with_hit"], prefix["prompt_tokens"], prefix["prefix_hit_tokens"]) == (3, 96, 48)
    assert (prefix["computed_prompt_tokens"], prefix["hit_share"]) == (48, 0.5)
    failure = only(rows(database, "SELECT * FROM failures"))
    assert (failure["error_code"], failure["state"], failure["jobs"]) == ("context_length", "failed", 1)
    assert failure["example_message"] == "too long"


@pytest.mark.usefixtures("known_jobs")
def test_waste_and_costs(database: Engine) -> None:
    waste = {row["reason"]: row for row in rows(database, "SELECT * FROM wasted_tokens WHERE queue = 'bulk'")}
    assert {reason: row["attempts"] for reason, row in waste.items()} == {"handed_back": 1, "recomputed": 3}
    assert (waste["handed_back"]["wasted_tokens"], waste["handed_back"]["wasted_engine_seconds"]) == (40, 1.5)
    assert (waste["recomputed"]["wasted_tokens"], waste["recomputed"]["wasted_engine_seconds"]) == (24, 0.75)
    batch = only(rows(database, "SELECT * FROM batch_costs WHERE batch_id = 'night'"))
    assert (batch["jobs"], batch["attempts"], batch["engine_seconds"]) == (3, 4, 6.0)
    assert (batch["cost"], batch["currency"]) == (pytest.approx(12.0), "EUR")
    tenants = rows(database, "SELECT * FROM tenant_costs ORDER BY tenant")
    assert [(row["tenant"], row["cost"]) for row in tenants] == [("acme", 12.0), ("other", 3.0)]
    jobs = rows(database, "SELECT * FROM job_costs ORDER BY job_id")
    assert [(row["job_id"], row["engine_seconds"]) for row in jobs] == [
        ("a", 1.5),
        ("b", 1.5),
        ("c", 3.0),
        ("failed", 1.5),
        ("running", None),
    ]


AGGREGATED = (
    "hourly_facts",
    "hourly_throughput",
    "memory_use",
    "prefix_savings",
    "failures",
    "wasted_tokens",
    "tenant_costs",
)


@pytest.mark.usefixtures("known_jobs")
def test_views_say_the_same_once_hours_are_rolled_up(database: Engine, store: JobStore) -> None:
    def said() -> dict[str, list[str]]:
        return {
            name: sorted(
                str([round(value, 6) if isinstance(value, float) else str(value) for value in row.values()])
                for row in rows(database, f"SELECT * FROM {name}")
            )
            for name in AGGREGATED
        }

    before = said()
    Roller(database, now=lambda: after(4300)).run()  # the first hour; the failure comes in the second
    with reading(database) as connection:
        assert connection.scalar(select(func.count()).select_from(HourlyTotalsRow)) == 1
    assert said() == before
    Roller(database, now=lambda: after(30 * 86_400)).run()  # all hours, and those of the first days by the day
    assert said() == before
    (totals,) = Reports(database).totals(ReportFilter())
    facts = rows(database, "SELECT * FROM hourly_facts")
    for name in ("jobs_done", "jobs_failed", "prompt_tokens", "completion_tokens", "prefix_hit_tokens", "preemptions"):
        assert sum(row[name] for row in facts) == getattr(totals, name)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("DROP VIEW prefix_savings", "view prefix_savings: is missing"),
        (
            "DROP VIEW failures; CREATE VIEW failures AS SELECT error_code FROM jobs",
            "view failures: has another definition",
        ),
    ],
)
def test_change_of_a_view_by_hand_is_found_and_mended(empty_database_url: str, change: str, complaint: str) -> None:
    schema.upgrade(empty_database_url)
    database = open_database(empty_database_url)
    with writing(database) as connection:
        for statement in change.split("; "):
            connection.execute(text(statement))
        connection.execute(text("CREATE VIEW of_my_own AS SELECT id FROM jobs"))
    with pytest.raises(ConfigurationError, match=f"changed by hand: .* first {complaint}; `pagemill db upgrade` makes"):
        schema.check(empty_database_url)
    schema.upgrade(empty_database_url)
    schema.check(empty_database_url)
    with reading(database) as connection:
        assert "of_my_own" in inspect(connection).get_view_names()
    database.dispose()


@pytest.mark.parametrize("empty_database_url", ["postgresql"], indirect=True)
def test_view_of_a_users_own_over_ours_is_named(empty_database_url: str) -> None:
    schema.upgrade(empty_database_url)
    database = open_database(empty_database_url)
    with writing(database) as connection:
        connection.execute(text("CREATE VIEW of_my_own AS SELECT job_id FROM job_facts"))
    schema.upgrade(empty_database_url)  # nothing to do: nothing is in the way
    with pytest.raises(ConfigurationError, match="view of_my_own depends on view job_facts; drop it"):
        schema.downgrade(empty_database_url, "0002")
    schema.check(empty_database_url)
    database.dispose()
