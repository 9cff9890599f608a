"""The example apps of docs/, run as they would be: by uvicorn, in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import httpx2
import pytest
import redis

from tests.worker.conftest import connection, sqlite_file, sqlite_store
from tests.worker.fakes import WAIT_SECONDS, ScriptedRunner, answer, eventually, make_flow, running
from worker.queue.embedded import embedded_url
from worker.sql.store import JobStore

__all__ = ["connection", "sqlite_file", "sqlite_store"]

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "docs" / "examples"
RUN = "import sys, uvicorn; uvicorn.run(sys.argv[1], uds=sys.argv[2], app_dir=sys.argv[3], log_level='warning')"
WITHOUT_US = "import sys; sys.modules['worker'] = None; sys.modules['engine'] = None; "  # importing either fails


@contextmanager
def running_app(name: str, code: str, folder: Path, redis_url: str) -> Iterator[httpx2.Client]:
    """Run an example until the block ends; give a client of it."""
    uds = folder / "app.sock"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
    command = [sys.executable, "-P", "-c", code, f"{name}:app", str(uds), str(EXAMPLES)]
    process = subprocess.Popen(command, env={**environ, "REDIS_URL": redis_url, "PYTHONPATH": str(ROOT)}, cwd=folder)
    try:
        eventually(lambda: uds.exists() or process.poll() is not None)
        assert process.poll() is None
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(uds)), base_url="http://app", timeout=30) as client:
            yield client
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def url(connection: redis.Redis, embedded_data_dir: Path) -> str:
    """The emptied queue's URL."""
    return embedded_url(embedded_data_dir)


def read_events(client: httpx2.Client, job_id: str, told: Callable[[], None] = lambda: None) -> list[tuple[str, str]]:
    """Return a job's events; `told` is called as soon as there is one."""
    with client.stream("GET", f"/jobs/{job_id}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = []
        for line in response.iter_lines():
            if line:
                lines.append(line)
                told()
    names = [line.removeprefix("event: ") for line in lines[::2]]
    return list(zip(names, (json.loads(line.removeprefix("data: ")) for line in lines[1::2]), strict=True))


def test_streaming_app(connection: redis.Redis, sqlite_store: JobStore, tmp_path: Path, url: str) -> None:
    first_is_read = Event()

    def reply(prompt: str) -> str:
        """The rest of an answer comes when its first part was read."""
        if runner.steps > 40:
            assert first_is_read.wait(WAIT_SECONDS)
        return f"{prompt} \u2713 <b>" * 12

    runner = ScriptedRunner(reply=reply)
    with (
        running(make_flow(connection, sqlite_store, runner)),
        running_app("streaming_app", RUN, tmp_path, url) as client,
    ):
        assert "EventSource" in client.get("/").text
        asked = client.post("/jobs", json={"prompt": "hello"})
        assert asked.status_code == 202
        events = read_events(client, asked.json()["id"], first_is_read.set)
        assert "".join(text for name, text in events if name == "text") == reply("hello")
        assert len(events) >= 3
        assert events[-1] == ("done", "")
        assert read_events(client, "nobody") == [("failed", "the job is failed")]
        for bad in (b"no", b'{"prompt": 1}', b"[]", b'{"prompt": " "}'):
            refused = client.post("/jobs", content=bad)
            assert (refused.status_code, list(refused.json())) == (400, ["error"])


def test_bare_rq_app_without_anything_of_ours(
    connection: redis.Redis, sqlite_store: JobStore, tmp_path: Path, url: str
) -> None:
    with (
        running(make_flow(connection, sqlite_store)),
        running_app("bare_rq_app", WITHOUT_US + RUN, tmp_path, url) as client,
    ):
        job_id = client.post("/jobs", json={"prompt": "hello"}).json()["id"]
        eventually(lambda: client.get(f"/jobs/{job_id}").json()["status"] == "finished")
        assert client.get(f"/jobs/{job_id}").json()["text"] == answer("hello")
        failing = client.post("/jobs", json={"prompt": "x" * 20_000}).json()["id"]
        eventually(lambda: client.get(f"/jobs/{failing}").json()["status"] == "failed")
        assert client.get(f"/jobs/{failing}").json()["error"].startswith("context_length: ")
        assert client.get("/jobs/nobody").status_code == 404
        assert client.post("/jobs", content=b"no").status_code == 400
