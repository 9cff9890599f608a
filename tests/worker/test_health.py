"""Health: it probes the engine, not the process; asking is free, and holds nobody up."""

import http.client
import json
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from scripts.fault_table.proxy import Proxy
from tests.worker.fakes import ENDLESS, ScriptedRunner, eventually, make_flow, running, sql_outage
from worker.client import submit
from worker.errors import ConfigurationError
from worker.running import health
from worker.running.drain import ClaimsState
from worker.running.flow import Flow
from worker.running.health import free_bytes
from worker.running.health_server import MAX_CONNECTIONS, serving_health
from worker.running.pulse import Pulse
from worker.settings_types import Address, parse_address
from worker.sql.store import JobStore

ANY_PORT: dict[str, Any] = {"health_address": "127.0.0.1:0", "beat_seconds": 0.05}


def ask(flow: Flow, path: str = "/healthz", method: str = "GET") -> tuple[int, Any]:
    """Return the status and the document of an answer."""
    assert flow.health_port is not None
    with closing(http.client.HTTPConnection("127.0.0.1", flow.health_port, timeout=30)) as client:
        client.request(method, path)
        response = client.getresponse()
        body = response.read()
        assert response.getheader("Server") == "pagemill"
        return response.status, json.loads(body) if body else None


def wait_until_it_claims(flow: Flow) -> None:
    eventually(lambda: flow.health_port and ask(flow)[1]["claims"] == ClaimsState.GOING)


def problems(flow: Flow) -> list[str]:
    status, report = ask(flow)
    assert status == (503 if report["problems"] else 200)
    return list(report["problems"])


def test_a_busy_worker_tells_that_it_is_well(connection: redis.Redis, sqlite_store: JobStore) -> None:
    submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    flow = make_flow(connection, sqlite_store, ScriptedRunner(step_seconds=0.001), **ANY_PORT)
    with running(flow):
        eventually(lambda: flow.health_port and ask(flow)[1]["requests_running"] == 1)
        status, report = ask(flow)
        assert (status, report["healthy"], report["problems"], report["claims"]) == (200, True, [], "going")
        assert (report["redis_answers"], report["sql_answers"], report["worker"]) == (True, True, "worker-1")
        assert (report["held_jobs"], report["buffered_results"], report["requests_waiting"]) == (1, 0, 0)
        assert 0 < report["blocks_free"] < report["blocks"]
        assert 0 <= report["engine_answered_seconds_ago"] < 30
        assert report["disk_free_bytes"] > 0
        assert ask(flow, "/livez?verbose=1") == (200, {"alive": True})
        assert ask(flow, "/healthz", "HEAD") == (200, None)
        assert ask(flow, "/elsewhere")[0] == 404
        assert ask(flow, "/healthz", "DELETE") == (501, 501)


def test_an_idle_engine_answers_a_ping(connection: redis.Redis, sqlite_store: JobStore) -> None:
    """The pulse of a loop that has nothing to do is renewed by being asked for; SQL hears of it with each beat."""
    flow = make_flow(connection, sqlite_store, **ANY_PORT)
    with running(flow):
        wait_until_it_claims(flow)
        before = flow._loop.pulse._answered_at
        eventually(lambda: ask(flow)[1]["healthy"] and flow._loop.pulse._answered_at > before)
        eventually(lambda: sqlite_store.workers()[0].engine_answered_at)
        worker = sqlite_store.workers()[0]
        assert worker.engine_answered_at is not None
        assert worker.record.started_at < worker.engine_answered_at <= worker.last_heartbeat_at


def test_a_step_that_hangs_is_noticed_while_the_process_beats(connection: redis.Redis, sqlite_store: JobStore) -> None:
    runner = ScriptedRunner()
    runner.may_step.clear()
    flow = make_flow(connection, sqlite_store, runner, engine_timeout_seconds=1.0, **ANY_PORT)
    submit(connection, ["x"])
    with running(flow) as worker:
        eventually(lambda: flow.health_port and problems(flow))
        (problem,) = problems(flow)
        assert problem.startswith("the engine has not answered for ")
        assert ask(flow, "/livez") == (200, {"alive": True})
        before = sqlite_store.workers()[0]
        eventually(lambda: sqlite_store.workers()[0].last_heartbeat_at > before.last_heartbeat_at)
        after = sqlite_store.workers()[0]
        assert before.engine_answered_at is not None
        assert after.engine_answered_at is not None
        assert abs((after.engine_answered_at - before.engine_answered_at).total_seconds()) < 0.5
        assert flow._loop._commands.qsize() <= 1  # pings do not pile up
        runner.may_step.set()
        eventually(lambda: not problems(flow))
        worker.stop()


def test_an_outage_of_sql_is_told_and_ends(connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path) -> None:
    flow = make_flow(connection, sqlite_store, **ANY_PORT)
    with running(flow):
        wait_until_it_claims(flow)
        with sql_outage(sqlite_file):
            submit(connection, ["x"])
            eventually(lambda: problems(flow) == ["SQL does not answer", "claims have stopped"])
            assert ask(flow)[1]["claims"] == ClaimsState.STOPPED
        eventually(lambda: not problems(flow))


def test_results_that_sql_does_not_take_are_counted(
    connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path
) -> None:
    runner = ScriptedRunner()
    runner.may_step.clear()
    ids = submit(connection, ["one", "two", "three"])
    flow = make_flow(connection, sqlite_store, runner, max_jobs=3, **ANY_PORT)
    with running(flow):
        eventually(lambda: len(sqlite_store.states(ids)) == 3)
        with sql_outage(sqlite_file):
            more = submit(connection, ["four"])
            runner.may_step.set()
            eventually(lambda: ask(flow)[1]["buffered_results"] == 3)
            assert ask(flow)[1]["held_jobs"] == 3  # there is no room for more
            assert flow._queue.depth(["default"]) == {"default": 1}
        eventually(lambda: len(sqlite_store.results([*ids, *more])) == 4)


def test_an_outage_of_redis_is_told_and_ends(proxy: Proxy, proxied: redis.Redis, sqlite_store: JobStore) -> None:
    flow = make_flow(proxied, sqlite_store, **ANY_PORT)
    with running(flow):
        wait_until_it_claims(flow)
        proxy.cut()
        eventually(lambda: problems(flow) == ["Redis does not answer", "claims have stopped"])
        proxy.mend()
        eventually(lambda: not problems(flow))


def test_a_full_disk_is_told(connection: redis.Redis, sqlite_store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = make_flow(connection, sqlite_store, **ANY_PORT)
    with running(flow):
        wait_until_it_claims(flow)
        monkeypatch.setattr(health, "free_bytes", lambda folder: 1024)
        assert problems(flow) == ["the disk of data_dir has 1024 bytes left"]
        monkeypatch.setattr(health, "free_bytes", lambda folder: None)
        assert problems(flow) == []


def test_a_worker_that_drains_is_well_until_it_ends(connection: redis.Redis, sqlite_store: JobStore) -> None:
    runner = ScriptedRunner(step_seconds=0.001)
    submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    flow = make_flow(connection, sqlite_store, runner, drain_seconds=3600.0, **ANY_PORT)
    with running(flow) as worker:
        eventually(lambda: runner.generations[ENDLESS])
        flow.worker.stopping.set()
        eventually(lambda: ask(flow)[1]["claims"] == ClaimsState.ENDED)
        assert problems(flow) == []
        port = flow.health_port
        worker.stop_at_once()
    assert port is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10)


def test_idle_connections_hold_nobody_up(connection: redis.Redis, sqlite_store: JobStore) -> None:
    flow = make_flow(connection, sqlite_store, **ANY_PORT)
    with running(flow) as worker:
        wait_until_it_claims(flow)
        assert flow.health_port is not None
        address = ("127.0.0.1", flow.health_port)
        silent = [socket.create_connection(address, timeout=30) for _ in range(MAX_CONNECTIONS)]
        eventually(lambda: sum(t.name.endswith("(process_request_thread)") for t in threading.enumerate()) >= 16)
        with socket.create_connection(address, timeout=30) as late:
            assert late.recv(1) == b""  # dropped at once
        ids = submit(connection, ["x"])
        eventually(lambda: sqlite_store.results(ids))
        for client in silent:
            client.close()
        eventually(lambda: problems_if_answered(flow) == [])
        worker.stop()


def problems_if_answered(flow: Flow) -> list[str] | None:
    try:
        return problems(flow)
    except (ConnectionError, http.client.HTTPException):
        return None


def test_an_address_that_is_taken_is_a_matter_of_configuration(connection: redis.Redis, sqlite_store: JobStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flow = make_flow(connection, sqlite_store, health_address=address)
        with pytest.raises(ConfigurationError, match=rf"^health_address: cannot listen on {address}: "):
            flow.run(burst=True)
    assert sqlite_store.workers() == ()


def test_nothing_is_served_unless_asked_for(connection: redis.Redis, sqlite_store: JobStore) -> None:
    flow = make_flow(connection, sqlite_store)
    with running(flow), serving_health(None, flow._upkeep.report, flow._metrics.expose) as port:
        assert (port, flow.health_port) == (None, None)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8080", Address("127.0.0.1", 8080)),
        ("0.0.0.0:80", Address("0.0.0.0", 80)),
        ("worker-3.local:0", Address("worker-3.local", 0)),
        ("[::1]:65535", Address("::1", 65_535)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", ":", ":80", "localhost", "localhost:", "::1:80", "a b:80", "1.2.3.4:65536", "-1"])
def test_other_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        parse_address(text)


def test_pulse() -> None:
    now = [100.0]
    pulse = Pulse(lambda: now[0])
    now[0] = 107.5
    assert pulse.age_seconds == 7.5
    assert pulse.ask()
    now[0] = 108.0
    assert not pulse.ask()  # it has not answered yet
    pulse.note()
    assert pulse.age_seconds == 0.0
    assert pulse.ask()


def test_the_disk_of_a_folder_to_come_is_the_one_above(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "to" / "come") is not None
