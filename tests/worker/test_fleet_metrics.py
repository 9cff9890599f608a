"""The fleet's figures: of all queues and workers, and of one service while the other is away."""

from pathlib import Path

import redis
from prometheus_client.parser import text_string_to_metric_families as parse_text

from scripts.fault_table.proxy import Proxy
from tests.sql.builders import worker_of
from tests.worker.fakes import sql_outage
from worker.client import submit
from worker.metrics.fleet_metrics import FleetMetrics
from worker.queue.policy import QueuePolicy
from worker.settings_model import Settings
from worker.sql.fleet import WorkerCounters
from worker.sql.store import JobStore
from worker.sql.tables import utc_now


def figures(metrics: FleetMetrics) -> dict[str, float]:
    """Return each sample by its name and label."""
    text = metrics.expose(None)[0].decode()
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def test_figures_of_queues_and_workers(proxied: redis.Redis, proxy: Proxy, sqlite_store: JobStore) -> None:
    submit(proxied, ["one", "two"], queue="bulk")
    submit(proxied, ["three"])
    QueuePolicy(proxied).pause(["bulk"])
    for name in ("w1", "w2"):
        sqlite_store.register_worker(worker_of(name, started_at=utc_now()))
        counters = WorkerCounters(
            jobs_done=3, jobs_failed=1, prompt_tokens=10, completion_tokens=20, prefix_hit_tokens=4
        )
        sqlite_store.heartbeat_worker(name, counters, utc_now() - utc_now())
    sqlite_store.stop_worker("w2")
    metrics = FleetMetrics(Settings(data_dir=Path("unused")), sqlite_store, proxied)
    expected_of_sql = {
        "pagemill_fleet_workers running": 1,
        "pagemill_fleet_workers stopped": 1,
        "pagemill_fleet_workers stuck": 0,
        "pagemill_fleet_workers silent": 0,
        "pagemill_fleet_jobs_done_total": 6,
        "pagemill_fleet_jobs_failed_total": 2,
        "pagemill_fleet_prompt_tokens_total": 20,
        "pagemill_fleet_generation_tokens_total": 40,
        "pagemill_fleet_prefix_cache_hits_total": 8,
    }
    assert figures(metrics) == expected_of_sql | {
        "pagemill_fleet_queue_depth bulk": 2,
        "pagemill_fleet_queue_depth default": 1,
        "pagemill_fleet_parked_jobs bulk": 0,
        "pagemill_fleet_parked_jobs default": 0,
        "pagemill_fleet_queue_paused bulk": 1,
        "pagemill_fleet_queue_paused default": 0,
        "pagemill_fleet_service_up redis": 1,
        "pagemill_fleet_service_up sql": 1,
    }
    proxy.cut()
    assert figures(metrics) == expected_of_sql | {
        "pagemill_fleet_service_up redis": 0,
        "pagemill_fleet_service_up sql": 1,
    }
    proxy.mend()


def test_figures_while_sql_is_away(connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path) -> None:
    submit(connection, ["one"])
    metrics = FleetMetrics(Settings(data_dir=Path("unused")), sqlite_store, connection)
    with sql_outage(sqlite_file):
        assert figures(metrics)["pagemill_fleet_service_up sql"] == 1  # readers need no lock
    sqlite_file.write_bytes(b"no database")
    found = figures(metrics)
    assert found["pagemill_fleet_service_up sql"] == 0
    assert found["pagemill_fleet_queue_depth default"] == 1
