"""/metrics: right in both formats, true of what ran, and there while engine, Redis or SQL are not."""

import http.client
from contextlib import closing
from pathlib import Path

import pytest
import redis
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from scripts.fault_table.proxy import Proxy
from tests.sql.builders import claim_of, dead_of, outcome_of, stats_of
from tests.worker.fakes import ENDLESS, ScriptedRunner, eventually, make_flow, running, sql_outage
from worker.client import submit
from worker.metrics.counting import MAX_LABEL_VALUES, OTHER, Histogram, LabelledCounter
from worker.metrics.exposition import expose, gauge, registry_of
from worker.metrics.job_tally import JobTally
from worker.metrics.queue_depths import QueueDepths
from worker.metrics.step_log import MAX_UNREAD_STEPS, Step, StepLog
from worker.records import AttemptState
from worker.running.flow import Flow
from worker.sql.store import JobStore

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(flow: Flow, accept: str = "") -> tuple[str, str]:
    """Return the text and its content type."""
    eventually(lambda: flow.health_port is not None)
    assert flow.health_port is not None
    with closing(http.client.HTTPConnection("127.0.0.1", flow.health_port, timeout=30)) as client:
        client.request("GET", "/metrics", headers={"Accept": accept})
        response = client.getresponse()
        assert response.status == 200
        return response.read().decode(), response.getheader("Content-Type", "")


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def value(flow: Flow, name: str, **labels: str) -> float:
    return samples(scrape(flow)[0])[name, tuple(sorted(labels.items()))]


def make(connection: redis.Redis, store: JobStore, runner: ScriptedRunner) -> Flow:
    return make_flow(connection, store, runner, health_address="127.0.0.1:0", beat_seconds=0.05)


def test_figures_of_jobs_that_ran(connection: redis.Redis, sqlite_store: JobStore) -> None:
    flow = make(connection, sqlite_store, ScriptedRunner())
    with running(flow):
        ids = submit(connection, ["one", "two", {"prompt": "three", "model": "other"}])
        ended = ("pagemill_request_success_total", "pagemill_job_failures_total")
        eventually(lambda: sum(number for (name, _), number in samples(scrape(flow)[0]).items() if name in ended) == 3)
        depth = ("pagemill_queue_depth", (("queue", "default"),))  # not told while a beat is late
        eventually(lambda: samples(scrape(flow)[0]).get(depth) == 0)
        text, content_type = scrape(flow)
        openmetrics, openmetrics_type = scrape(flow, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert len(ids) == 3
    found = samples(text)
    expected = {
        "pagemill_prompt_tokens_total": 6,
        "pagemill_generation_tokens_total": 12,  # each answer is "<prompt>", then the end of sequence
        "pagemill_prefix_cache_queries_total": 6,
        "pagemill_time_to_first_token_seconds_count": 2,
        "pagemill_inter_token_latency_seconds_count": 10,
        "pagemill_e2e_request_latency_seconds_count": 2,
        "pagemill_request_prompt_tokens_sum": 6,
        "pagemill_claims_total": 3,
        "pagemill_healthy": 1,
        "pagemill_spec_decode_num_draft_tokens_total": 0,
        "pagemill_spec_decode_num_accepted_tokens_total": 0,
    }
    assert {name: found[name, ()] for name in expected} == expected
    assert found["pagemill_request_success_total", (("finished_reason", "stop"),)] == 2
    assert found["pagemill_job_failures_total", (("code", "model_not_served"),)] == 1
    steps = found["pagemill_engine_steps_total", ()]
    assert found["pagemill_engine_step_seconds_count", ()] == steps > 0
    assert content_type.startswith("text/plain; version=")
    assert openmetrics_type.startswith("application/openmetrics-text")
    assert openmetrics.endswith("# EOF\n")
    families = {family.name: family for family in parse_openmetrics(openmetrics)}  # type: ignore[no-untyped-call]
    assert families["pagemill_request_success"].type == "counter"
    assert families["pagemill_kv_cache_usage_perc"].type == "gauge"
    assert families["pagemill_time_to_first_token_seconds"].type == "histogram"
    ours = [family for name, family in families.items() if name.startswith("pagemill_")]
    assert all(family.documentation for family in ours)


def test_metrics_answer_while_engine_and_sql_do_not(
    connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path
) -> None:
    runner = ScriptedRunner()
    flow = make(connection, sqlite_store, runner)
    with running(flow) as worker:
        submit(connection, [{"prompt": ENDLESS, "max_tokens": 1000}])
        eventually(lambda: value(flow, "pagemill_num_requests_running") == 1)
        runner.may_step.clear()
        with sql_outage(sqlite_file):
            eventually(lambda: value(flow, "pagemill_service_up", service="sql") == 0)
            assert value(flow, "pagemill_service_outages_total", service="sql") >= 1
            assert value(flow, "pagemill_service_up", service="redis") == 1
        runner.may_step.set()
        worker.stop_at_once()


def test_metrics_answer_without_redis(proxied: redis.Redis, proxy: Proxy, sqlite_store: JobStore) -> None:
    flow = make(proxied, sqlite_store, ScriptedRunner())
    with running(flow) as worker:
        eventually(lambda: "pagemill_queue_depth{" in scrape(flow)[0])
        proxy.cut()
        eventually(lambda: value(flow, "pagemill_service_up", service="redis") == 0)
        eventually(lambda: "pagemill_queue_depth{" not in scrape(flow)[0])  # what it was then is not true any more
        proxy.mend()
        worker.stop_at_once()


def test_one_worker_tells_how_deep_a_queue_is(connection: redis.Redis) -> None:
    first = QueueDepths(connection, "w1", ["a", "b"], 5.0)
    second = QueueDepths(connection, "w2", ["b", "c"], 5.0)
    connection.rpush("rq:queue:b", "x", "y")
    for depths in (first, second, first, second):
        depths.refresh()
    assert (first.latest, second.latest) == ({"a": 0, "b": 2}, {"c": 0})
    connection.delete("pagemill:metrics:teller:b")  # as when the first had died
    second.refresh()
    first.refresh()
    assert (first.latest, second.latest) == ({"a": 0}, {"b": 2, "c": 0})


def test_tally_counts_each_kind_of_end() -> None:
    tally, claim = JobTally(), claim_of("a")
    tally.note_ends(
        [
            outcome_of(claim, stats=stats_of(ttft_ms=None)),
            outcome_of(claim, AttemptState.FAILED),
            outcome_of(claim, AttemptState.CANCELLED),
        ]
    )
    tally.note_given_back(outcome_of(claim, AttemptState.FAILED))
    tally.note_given_back(outcome_of(claim, AttemptState.REQUEUED))
    tally.note_fenced()
    tally.note_dead([dead_of("d")])
    found = samples(expose(registry_of(tally.families), None)[0].decode())
    assert found["pagemill_request_success_total", (("finished_reason", "stop"),)] == 1
    assert found["pagemill_request_success_total", (("finished_reason", "length"),)] == 0
    assert found["pagemill_job_failures_total", (("code", "failed_code"),)] == 1
    assert found["pagemill_dead_letters_total", (("code", "unknown_function"),)] == 1
    singles = ("jobs_cancelled", "job_retries", "job_requeues", "fenced_results")
    assert [found[f"pagemill_{name}_total", ()] for name in singles] == [1, 1, 1, 1]
    assert found["pagemill_e2e_request_latency_seconds_sum", ()] == 11.0
    assert found["pagemill_time_to_first_token_seconds_count", ()] == 0


def test_histogram_counts_a_bound_in_its_own_bucket() -> None:
    histogram = Histogram("h", "text", (1, 2.5))
    histogram.add([0.5, 1, 2, 3])
    found = samples(expose(registry_of(lambda: [histogram.family()]), None)[0].decode())
    assert found == {
        ("h_bucket", (("le", "1.0"),)): 2,
        ("h_bucket", (("le", "2.5"),)): 3,
        ("h_bucket", (("le", "+Inf"),)): 4,
        ("h_count", ()): 4,
        ("h_sum", ()): 6.5,
    }


def test_labels_are_escaped_and_bounded() -> None:
    counter = LabelledCounter("c", "a \\ and\na line", "code")
    odd = 'quote " backslash \\ line\nend'
    counter.add([odd, *map(str, range(2 * MAX_LABEL_VALUES))])
    text = expose(registry_of(lambda: [counter.family()]), None)[0].decode()
    assert 'c_total{code="quote \\" backslash \\\\ line\\nend"} 1.0\n' in text
    found = samples(text)
    assert found["c_total", (("code", odd),)] == 1
    assert found["c_total", (("code", OTHER),)] == MAX_LABEL_VALUES + 1
    assert len(found) == MAX_LABEL_VALUES + 1


def test_steps_that_nobody_reads_take_no_more_room() -> None:
    log = StepLog()
    for _ in range(MAX_UNREAD_STEPS + 5):
        log.note(Step(0.01, 2, 30))
    registry = registry_of(log.families)
    counts = [samples(expose(registry, None)[0].decode())["pagemill_iteration_tokens_count", ()] for _ in range(2)]
    assert counts == [MAX_UNREAD_STEPS, MAX_UNREAD_STEPS]


@pytest.mark.parametrize("accept", [None, "", "*/*", "application/openmetrics-text; version=nonsense", "\x00"])
def test_any_accept_header_has_an_answer(accept: str | None) -> None:
    text, content_type = expose(registry_of(lambda: [gauge("g", "text", 1)]), accept)
    assert b"g 1.0" in text
    assert content_type
