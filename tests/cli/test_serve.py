"""`pagemill serve` as a process, `keys` and `outbox`: what they print and how they end."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import redis
from sqlalchemy import text

from tests.cli.conftest import PROGRAM, ROOT, Run, RunProcess
from tests.worker.fakes import eventually
from worker.errors import ExitCode
from worker.sql.database import open_database, writing
from worker.sql.store import JobStore


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_service_listens_answers_and_ends_in_order(run: Run, environ: dict[str, str], tmp_path: Path) -> None:
    assert run("db", "upgrade").exit_code == 0
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
    port = free_port()
    log = tmp_path / "serve.log"
    with log.open("w") as file:
        service = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "serve", "--serve-address", str(port), "--log-format", "json"],
            env={**inherited, **environ, "PYTHONPATH": str(ROOT)},
            stderr=file,
        )
    try:
        eventually(lambda: "which needs no API key" in log.read_text() or service.poll() is not None)
        eventually(lambda: answers(port))
        assert httpx2.get(f"http://127.0.0.1:{port}/v1/models").json() == {"object": "list", "data": []}
        taken = run("serve", "--serve-address", str(port))
        assert taken.exit_code == ExitCode.CONFIGURATION
        assert taken.stderr == f"error: serve_address: cannot listen on 127.0.0.1:{port}: Address already in use\n"
        service.send_signal(signal.SIGTERM)
        assert service.wait(30) == ExitCode.OK
    finally:
        service.kill()
        service.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (told,) = [line for line in lines if "/v1/models" in line["message"]]
    assert told["message"].startswith("GET /v1/models 200 ")
    assert told["tenant"] == "default"
    assert lines[-1]["message"] == "the service has ended"


def answers(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/livez").status_code == 200
    except httpx2.ConnectError:
        return False


def test_service_without_tables_says_what_to_do(run: Run, tmp_path: Path) -> None:
    refused = run("serve", "--database-url", f"sqlite:///{tmp_path}/none.db")
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert "run `pagemill db upgrade`" in refused.stderr


def test_key_is_shown_once(run: Run) -> None:
    assert run("db", "upgrade").exit_code == 0
    made = run("keys", "add", "--tenant", "acme", "--name", "reports")
    key = made.stdout.strip()
    assert key.startswith("pm-")
    assert "it is not shown again" in made.stderr
    (listed,) = json.loads(run("keys", "ls", "--json").stdout)
    assert (listed["tenant"], listed["name"], listed["revoked_at"]) == ("acme", "reports", None)
    assert key not in run("keys", "ls").stdout
    assert run("keys", "revoke", listed["key_id"]).exit_code == 0
    (listed,) = json.loads(run("keys", "ls", "--json").stdout)
    assert listed["revoked_at"] is not None
    unknown = run("keys", "revoke", "key_nobody")
    assert (unknown.exit_code, unknown.stderr) == (
        ExitCode.USAGE,
        "error: there is no key 'key_nobody'; see `pagemill keys ls`\n",
    )
    for bad in (("--tenant", "a b"), ("--tenant", "a", "--name", "")):
        assert run("keys", "add", *bad).exit_code == ExitCode.USAGE


def test_outbox_is_shown_and_emptied(
    run: Run, run_process: RunProcess, environ: dict[str, str], empty_queue: redis.Redis, store: JobStore
) -> None:
    assert run("db", "upgrade").exit_code == 0
    database = open_database(environ["PAGEMILL_DATABASE_URL"])
    with writing(database) as connection:
        connection.execute(text("""INSERT INTO pagemill_outbox (payload) VALUES ('{"prompt": "a"}'), ('junk')"""))
    database.dispose()
    status = json.loads(run("outbox", "status", "--json").stdout)
    assert (status["num_waiting"], status["num_recorded"]) == (2, 0)
    moved = run_process("outbox", "relay", "--json")
    assert (moved.returncode, json.loads(moved.stdout)) == (0, {"queued": 1})
    assert "is no job; see `pagemill dead show" in moved.stderr
    assert empty_queue.llen("rq:queue:default") == 1
    assert store.outbox_status().num_waiting == 0
