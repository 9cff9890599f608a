"""Files of requests and of their results, and a worker that answers them: for the tests of `pagemill batch`."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PROGRAM, ROOT, CannedWorker
from worker.batch import submitting
from worker.queue.submission import enqueue as enqueue_jobs
from worker.records import Claim

WAIT_SECONDS = 60.0


def request(custom_id: str, **body: Any) -> str:
    messages = [{"role": "user", "content": f"What is {custom_id}?"}]
    line = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": messages, **body},
    }
    return json.dumps(line)


def write_requests(folder: Path, *lines: str, name: str = "in.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def by_custom_id(path: Path) -> dict[str, dict[str, Any]]:
    lines = read_lines(path)
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines), "a custom_id came twice"
    return found


def content(line: Mapping[str, Any]) -> str:
    text: str = line["response"]["body"]["choices"][0]["message"]["content"]
    return text


def answer_of(claim: Claim) -> str | None:
    """What the canned worker says; None is to fail."""
    name = claim.job.custom_id or ""
    return None if name.startswith("bad") else f"it is {name}"


def at_second_chunk(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen as the second chunk of four jobs is about to be queued."""
    monkeypatch.setattr(submitting, "CHUNK_JOBS", 4)
    calls: list[int] = []

    def enqueue(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            happens()
        return enqueue_jobs(*arguments, **options)

    monkeypatch.setattr(submitting, "enqueue", enqueue)


@contextmanager
def answering(worker: CannedWorker, limit: int | None = None) -> Iterator[list[str]]:
    """Answer jobs from a thread until the block ends, or until `limit` were; gives the custom ids in their order."""
    answered: list[str] = []
    stopped = threading.Event()

    def answer() -> None:
        while not stopped.wait(0.02) and (limit is None or len(answered) < limit):
            for claim in worker.claim(10 if limit is None else min(10, limit - len(answered))):
                worker.end(claim, answer_of(claim), "the prompt is too long")
                answered.append(claim.job.custom_id or "")

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield answered
    finally:
        stopped.set()
        thread.join()


@contextmanager
def run_in_background(environ: Mapping[str, str], folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**inherited, **environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited for {WAIT_SECONDS:g} s"
        time.sleep(0.02)
