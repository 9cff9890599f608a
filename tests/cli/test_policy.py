"""pause, resume and tenant: what they set, and what status and submit say of it."""

import json
import threading

import pytest
from rq import Queue

from tests.cli.conftest import CannedWorker, Run
from tests.worker.fakes import eventually


def queues(run: Run) -> dict[str, dict[str, object]]:
    return {row["queue"]: row for row in json.loads(run("status", "--json").stdout)["queues"]}


def test_paused_queue_keeps_its_jobs_until_it_is_resumed(run: Run, canned_worker: CannedWorker) -> None:
    assert json.loads(run("pause", "bulk", "bulk", "--json").stdout) == {"bulk": "paused"}
    run("submit", "one", "--queue", "bulk")
    run("submit", "two")
    assert canned_worker.answer("fine") == 1
    assert queues(run)["bulk"] | {"paused": True, "waiting": 1} == queues(run)["bulk"]
    assert queues(run)["default"]["paused"] is False
    resumed = run("resume", "bulk")
    assert (resumed.exit_code, resumed.stdout.split()[-2:]) == (0, ["bulk", "open"])
    assert canned_worker.answer("fine") == 1


def test_paused_queue_without_jobs_is_shown(run: Run) -> None:
    run("pause", "tonight")
    assert queues(run)["tonight"]["paused"] is True
    assert "yes" in run("status").stdout


def test_who_waits_for_a_paused_queue_is_told(run: Run, canned_worker: CannedWorker) -> None:
    run("pause", "default")

    def cancel() -> None:
        connection = canned_worker.queue.connection
        eventually(lambda: canned_worker.queue.depth(["default"])["default"])
        canned_worker.queue.cancel(Queue("default", connection=connection).job_ids[0])

    thread = threading.Thread(target=cancel)
    thread.start()
    waiting = run("submit", "x", "--wait")
    thread.join()
    assert waiting.stderr.startswith("queue default is paused: ")


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_queue_needs_a_name_that_it_can_have(run: Run, command: str) -> None:
    refused = run(command, "a:b")
    assert refused.exit_code == 2
    assert "is not a queue's name" in refused.stderr


def test_limits_are_set_listed_and_cleared(run: Run, canned_worker: CannedWorker) -> None:
    assert run("tenant", "limit", "acme", "--max-running", "1", "--per-minute", "60").exit_code == 0
    assert run("tenant", "limit", "*", "--max-running", "5").exit_code == 0
    for prompt in ("one", "two", "three"):
        run("submit", prompt, "--tenant", "acme")
    assert len(canned_worker.claim()) == 1
    everyone, acme = json.loads(run("tenant", "list", "--json").stdout)
    assert acme == {
        "tenant": "acme",
        "limit": {"max_running": 1, "per_minute": 60},
        "running": 1,
        "started": 1,
        "parked": {"default": 2},
    }
    assert (everyone["tenant"], everyone["limit"]) == ("*", {"max_running": 5, "per_minute": None})
    assert run("tenant", "list").stdout.split()[-6:] == ["acme", "1", "60", "1", "1", "2"]
    assert queues(run)["default"] | {"waiting": 0, "parked": 2, "running": 1} == queues(run)["default"]

    assert (run("tenant", "clear", "acme").stderr, run("tenant", "clear", "*").stderr) == ("", "")
    assert run("tenant", "clear", "acme").stderr == "there was no limit for acme\n"
    assert len(canned_worker.claim()) == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["acme"], "error: max_running, per_minute: at least one of them makes a limit\n"),
        (["acme", "--max-running", "0"], "error: max_running: must be from 1 to 1000000, got 0\n"),
        (["a b", "--max-running", "1"], "error: tenant: must be * or up to 128 letters"),
    ],
)
def test_limits_out_of_bounds_are_refused(run: Run, arguments: list[str], error: str) -> None:
    refused = run("tenant", "limit", *arguments)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(error)
    assert refused.stderr.count("\n") == 1
