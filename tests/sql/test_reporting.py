"""The reports against plain Python over the same random jobs. On both databases."""

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from sqlalchemy import Engine

from tests.sql.builders import after, claim_of, dead_of, outcome_of, stats_of, submitted_of
from worker.records import AttemptState, JobState, Outcome
from worker.sql.reporting import LATENCIES, MEMORY, Dimension, ReportFilter, Reports
from worker.sql.store import JobStore

EVERYTHING = ReportFilter()


@pytest.fixture
def reports(database: Engine) -> Reports:
    return Reports(database)


def random_outcomes(seed: int, count: int) -> list[Outcome]:
    """Ended attempts at `count` jobs of several queues, tenants, models and batches."""
    chance = random.Random(seed)
    outcomes = []
    for number in range(count):
        claim = claim_of(
            f"job-{number}",
            queue=chance.choice(["high", "low"]),
            at_s=chance.uniform(0, 50),
            tenant=chance.choice(["acme", "default"]),
            model=chance.choice([None, "smollm2"]),
            batch_id=chance.choice([None, "night"]),
        )
        stats = stats_of(
            **{name: chance.choice([chance.uniform(0, 1e4), 5.0]) for name in LATENCIES},
            **{name: chance.randrange(1 << 40) for name in MEMORY if name != "kv_block_seconds"},
            kv_block_seconds=chance.expovariate(1),
            prefix_hit_tokens=chance.choice([0, 16, 32]),
            preemptions=chance.randrange(3),
        )
        if chance.random() < 0.2:
            stats = stats_of(ttft_ms=None, itl_mean_ms=None, itl_p99_ms=None)
        state = chance.choice([AttemptState.DONE] * 4 + [AttemptState.FAILED, AttemptState.CANCELLED])
        tokens = {"prompt_tokens": chance.randrange(40, 400), "completion_tokens": chance.randrange(1, 64)}
        ended_at_s = chance.uniform(60, 90)
        outcomes.append(outcome_of(claim, state, at_s=ended_at_s, stats=stats, text="some text", **tokens))
    return outcomes


def store_all(store: JobStore, outcomes: Sequence[Outcome]) -> None:
    assert not store.begin_attempts([outcome.claim for outcome in outcomes], "w1").terminal
    assert not store.finish_attempts(outcomes)


def nearest_rank(values: Sequence[float], percent: int) -> float:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def figures(outcomes: Sequence[Outcome], metric: str) -> list[float]:
    values = [getattr(outcome.stats, metric) for outcome in outcomes]
    return [value for value in values if value is not None]


@pytest.mark.parametrize(("seed", "count"), [(1, 1), (2, 2), (3, 99), (4, 100), (5, 101)])
def test_latency_equals_plain_python(store: JobStore, reports: Reports, seed: int, count: int) -> None:
    outcomes = random_outcomes(seed, count)
    store_all(store, outcomes)
    done = [outcome for outcome in outcomes if outcome.state is AttemptState.DONE]
    rows = reports.latency(EVERYTHING)
    assert tuple(row.metric for row in rows) == LATENCIES
    for row in rows:
        values = figures(done, row.metric)
        assert row.count == len(values)
        if values:
            assert row.mean == pytest.approx(sum(values) / len(values))
            assert (row.p50, row.p90, row.p99) == tuple(nearest_rank(values, percent) for percent in (50, 90, 99))
            assert row.max == max(values)
        else:
            assert (row.mean, row.p50, row.p90, row.p99, row.max) == (None,) * 5


def test_memory_equals_plain_python(store: JobStore, reports: Reports) -> None:
    outcomes = random_outcomes(6, 150)
    store_all(store, outcomes)
    rows = reports.memory(EVERYTHING)
    assert tuple(row.metric for row in rows) == MEMORY
    for row in rows:
        values = figures(outcomes, row.metric)
        assert row.count == len(values) == len(outcomes)
        assert row.mean == pytest.approx(sum(values) / len(values))
        assert (row.p50, row.p99, row.max) == (nearest_rank(values, 50), nearest_rank(values, 99), max(values))
        assert row.total == (pytest.approx(sum(values)) if row.metric == "kv_block_seconds" else None)


@pytest.mark.parametrize(
    "chosen",
    [
        EVERYTHING,
        ReportFilter(queue="high"),
        ReportFilter(batch="night", model="smollm2"),
        ReportFilter(since=after(75)),
        ReportFilter(since=after(75), queue="low", batch="night", model="smollm2"),
        ReportFilter(queue="unknown"),
    ],
)
def test_every_report_takes_the_filter(store: JobStore, reports: Reports, chosen: ReportFilter) -> None:
    outcomes = random_outcomes(7, 120)
    store_all(store, outcomes)
    taken = [outcome for outcome in outcomes if matches(outcome, chosen)]
    done = [outcome for outcome in taken if outcome.state is AttemptState.DONE]
    summary = reports.summary(chosen)
    assert summary.jobs_by_state == {
        **dict.fromkeys(JobState, 0),
        **Counter(JobState(outcome.state.value) for outcome in taken),
    }
    assert summary.prompt_tokens == sum(outcome.prompt_tokens for outcome in taken)
    assert summary.completion_tokens == sum(outcome.completion_tokens for outcome in taken)
    assert summary.prefix_hit_tokens == sum(figures(taken, "prefix_hit_tokens"))
    assert summary.preemptions == sum(figures(taken, "preemptions"))
    assert reports.latency(chosen)[0].count == len(done)
    assert reports.memory(chosen)[0].count == len(taken)
    assert sum(row.jobs for row in reports.prefix(chosen, (Dimension.QUEUE,))) == len(taken)


def matches(outcome: Outcome, chosen: ReportFilter) -> bool:
    claim = outcome.claim
    return (
        (chosen.since is None or outcome.ended_at >= chosen.since)
        and chosen.queue in (None, claim.queue)
        and chosen.batch in (None, claim.job.batch_id)
        and chosen.model in (None, claim.job.model)
    )


def test_summary_of_every_kind_of_job(store: JobStore, reports: Reports) -> None:
    names = ("done", "failed", "running", "handed-back")
    done, failed, running, handed_back = (claim_of(name, at_s=float(10 + at)) for at, name in enumerate(names))
    store.begin_attempts([done, failed, running, handed_back], "w1")
    store.finish_attempts([outcome_of(handed_back, AttemptState.REQUEUED)])
    again = claim_of("handed-back", 2, at_s=25.0)
    store.begin_attempts([again], "w1")
    preempted = stats_of(preemptions=2, prefix_hit_tokens=32)
    store.finish_attempts(
        [
            outcome_of(done, at_s=30.0, stats=preempted, prompt_tokens=50, completion_tokens=20),
            outcome_of(again, at_s=50.0, prompt_tokens=46, completion_tokens=20),
            outcome_of(failed, AttemptState.FAILED, error_code="context_length"),
        ]
    )
    store.record_dead([dead_of("dead")])
    store.record_cancelled([submitted_of("cancelled")])
    summary = reports.summary(EVERYTHING)
    assert summary.jobs_by_state == {
        JobState.QUEUED: 0,
        JobState.RUNNING: 1,
        JobState.DONE: 2,
        JobState.FAILED: 1,
        JobState.CANCELLED: 1,
        JobState.DEAD: 1,
    }
    assert summary.failures_by_error_code == {"context_length": 1, "unknown_function": 1}
    assert (summary.prompt_tokens, summary.completion_tokens, summary.prefix_hit_tokens) == (96, 40, 48)
    assert (summary.prefix_hit_share, summary.preemptions, summary.jobs_with_retries) == (0.5, 2, 1)
    # The jobs that nobody claimed ended later by the clock; the span is from the first claim to the last end of one.
    assert (summary.first_claim_at, summary.last_end_at, summary.span_s) == (after(10), after(50), 40.0)
    assert (summary.completion_tokens_per_s, summary.jobs_done_per_s) == (1.0, 0.05)


def test_reports_of_nothing(reports: Reports) -> None:
    summary = reports.summary(EVERYTHING)
    assert set(summary.jobs_by_state.values()) == {0}
    assert (summary.prompt_tokens, summary.prefix_hit_share, summary.span_s, summary.jobs_done_per_s) == (
        0,
        None,
        None,
        None,
    )
    assert all((row.count, row.mean, row.p99, row.max) == (0, None, None, None) for row in reports.latency(EVERYTHING))
    assert all((row.count, row.total) == (0, None) for row in reports.memory(EVERYTHING))
    assert reports.prefix(EVERYTHING, (Dimension.TENANT, Dimension.MODEL)) == ()


def test_prefix_by_tenant_and_model_equals_plain_python(store: JobStore, reports: Reports) -> None:
    outcomes = random_outcomes(8, 100)
    store_all(store, outcomes)
    rows = reports.prefix(EVERYTHING, (Dimension.TENANT, Dimension.MODEL))
    assert len(rows) == 4
    for row in rows:
        group = [outcome for outcome in outcomes if row.group == (outcome.claim.job.tenant, outcome.claim.job.model)]
        hits = figures(group, "prefix_hit_tokens")
        prompt_tokens = sum(outcome.prompt_tokens for outcome in group)
        assert (row.jobs, row.jobs_with_hit) == (len(group), sum(hit > 0 for hit in hits))
        assert (row.prompt_tokens, row.prefix_hit_tokens) == (prompt_tokens, sum(hits))
        assert row.hit_rate == sum(hits) / prompt_tokens
