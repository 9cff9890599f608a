"""Records that are no prompt jobs: kept raw, shown with their reason, never run."""

import json
import pickle
import random
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import redis
from rq import Queue
from rq.job import Job

from tests.queue.suspicion import claim_suspects
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.queue.queue_records import MAX_DATA_BYTES
from worker.records import AttemptState, Claim, DeadRecord

Enqueue = Callable[..., list[str]]
GOOD_CALL: list[Any] = ["pagemill.prompt", None, [{"prompt": "x"}], {}]


def put(connection: redis.Redis, job_id: str, fields: dict[str, Any]) -> None:
    """Write a job as RQ does, with some fields of another kind (None: without the field)."""
    record: dict[Any, Any] = {
        "status": "queued",
        "origin": "default",
        "created_at": "2026-01-31T23:59:59.000001Z",
        "enqueued_at": "2026-01-31T23:59:59.000001Z",
        "timeout": "180",
        "data": zlib.compress(json.dumps(GOOD_CALL).encode()),
        **fields,
    }
    connection.hset(f"rq:job:{job_id}", mapping={name: value for name, value in record.items() if value is not None})
    connection.rpush("rq:queue:default", job_id)


def call(*parts: object) -> dict[str, object]:
    return {"data": zlib.compress(json.dumps(parts).encode())}


def prompt(**payload: object) -> dict[str, object]:
    return call("pagemill.prompt", None, [payload], {})


CASES: dict[str, tuple[dict[str, object], str, str]] = {
    "another function": (call("os.system", None, ["ls"], {}), "wrong_function", "'os.system' was refused"),
    "a method": (call("pagemill.prompt", {"a": 1}, [{"prompt": "x"}], {}), "wrong_arguments", "one positional"),
    "keywords": (call("pagemill.prompt", None, [], {"job": {"prompt": "x"}}), "wrong_arguments", "one positional"),
    "no argument": (call("pagemill.prompt", None, [], {}), "wrong_arguments", "exactly one"),
    "two arguments": (call("pagemill.prompt", None, [{"prompt": "x"}, {}], {}), "wrong_arguments", "exactly one"),
    "a text": (call("pagemill.prompt", None, ["x"], {}), "wrong_arguments", "exactly one"),
    "a pickle": ({"data": zlib.compress(pickle.dumps(("this", None, (), {})))}, "pickled_record", "was not loaded"),
    "no compression": ({"data": json.dumps(GOOD_CALL)}, "corrupt_record", "not zlib-compressed"),
    "half the data": ({"data": zlib.compress(json.dumps(GOOD_CALL).encode())[:-3]}, "corrupt_record", "cut short"),
    "more than the data": ({"data": zlib.compress(b"[]") + b"!"}, "corrupt_record", "behind its end"),
    "a bomb": ({"data": zlib.compress(b" " * (MAX_DATA_BYTES + 1))}, "invalid_job", "has more than 1048576 bytes"),
    "no data": ({"data": None}, "corrupt_record", "data: "),
    "no JSON": ({"data": zlib.compress(b"{")}, "corrupt_record", "not JSON"),
    "no UTF-8": ({"data": zlib.compress(b'"\xff"')}, "corrupt_record", "not JSON"),
    "deep JSON": ({"data": zlib.compress(b"[" * 100_000)}, "corrupt_record", "not JSON"),
    "a long number": ({"data": zlib.compress(b"1" * 5000)}, "corrupt_record", "not JSON"),
    "an object": ({"data": zlib.compress(b"{}")}, "corrupt_record", "list of function"),
    "a strange status": ({"status": "banana"}, "corrupt_record", "'banana' is not one of RQ's"),
    "a strange date": ({"enqueued_at": "yesterday"}, "corrupt_record", "enqueued_at: 'yesterday'"),
    "an impossible date": ({"created_at": "2026-02-30T00:00:00.0Z"}, "corrupt_record", "created_at: "),
    "no date": ({"created_at": None, "enqueued_at": None}, "corrupt_record", "enqueued_at: is missing"),
    "a strange timeout": ({"timeout": "abc"}, "corrupt_record", "timeout: 'abc'"),
    "an endless result": ({"result_ttl": "1e99"}, "corrupt_record", "result_ttl: '1e99'"),
    "no number": ({"failure_ttl": "nan"}, "corrupt_record", "failure_ttl: 'nan'"),
    "an empty prompt": (prompt(prompt=" "), "invalid_job", "prompt: is empty"),
    "a field unknown": (prompt(prompt="x", typo=1), "invalid_job", "typo: unknown field"),
    "a number too low": (prompt(prompt="x", max_tokens=0), "invalid_job", "max_tokens: "),
    "NaN": (prompt(prompt="x", temperature=float("nan")), "invalid_job", "temperature: "),
    "a NUL": (prompt(prompt="a\0"), "invalid_job", "NUL character"),
    "a lone surrogate": (prompt(prompt="\ud800"), "invalid_job", ": "),
    "a later schema": (prompt(prompt="x", schema_version=2), "invalid_job", "schema_version: "),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_prompt_job_is_dead_lettered(
    queue_connection: redis.Redis, worker_queue: JobQueue, case: str
) -> None:
    fields, code, message = CASES[case]
    put(queue_connection, "job-1", fields)
    claimed = worker_queue.claim(["default"], 8)
    assert claimed.claims == ()
    (dead,) = claimed.dead
    assert (dead.job_id, dead.queue, dead.error_code) == ("job-1", "default", code)
    assert message in dead.error_message
    assert "\n" not in dead.error_message
    assert worker_queue.dead_letter(claimed.dead) == 1
    assert worker_queue.dead_letter(claimed.dead) == 0
    assert queue_connection.lrange("pagemill:dead:default", 0, -1) == [dead.raw.encode()]
    assert queue_connection.hget("rq:job:job-1", "status") == b"failed"
    counts = worker_queue.counts(["default"])["default"]
    assert (counts.waiting, counts.running, counts.failed, counts.dead) == (0, 0, 1, 1)
    assert queue_connection.zcard("pagemill:leases:default") == 0
    assert "this" not in sys.modules


def test_rq_shows_a_dead_record_with_its_reason(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    job = Queue("default", connection=queue_connection).enqueue("os.system", "ls")  # RQ pickles by default
    worker_queue.dead_letter(worker_queue.claim(["default"], 1).dead)
    found = Job.fetch(job.id, connection=queue_connection, serializer="json")
    result = found.latest_result()
    assert found.is_failed
    assert result is not None
    assert result.exc_string == ("pickled_record: data: is pickled and was not loaded; enqueue with serializer='json'")


def test_a_record_is_kept_as_it_was(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    put(queue_connection, "job-1", {"status": "banana", "note": "gr\u00fcn", "blob": b"\xff\x00"})
    (dead,) = worker_queue.claim(["default"], 1).dead
    raw = json.loads(dead.raw)
    assert (raw["status"], raw["note"], raw["blob"]) == ("banana", "gr\u00fcn", "hex:ff00")
    assert raw["data"].startswith("hex:789c")
    assert dead.raw.isascii()
    assert dead.enqueued_at is not None


def test_dead_records_are_leased_until_they_are_dead_lettered(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue
) -> None:
    put(queue_connection, "job-1", {"data": "?"})
    (dead,) = worker_queue.claim(["default"], 1).dead
    assert other_queue.dead_letter([dead]) == 0
    member: Any
    (member,) = queue_connection.zrange("pagemill:leases:default", 0, -1)
    queue_connection.zadd("pagemill:leases:default", {str(member, "ascii"): 1.0})
    assert other_queue.sweep(["default"]) == ("job-1",)
    assert worker_queue.dead_letter([dead]) == 0
    assert len(claim_suspects(queue_connection, other_queue).dead) == 1


@pytest.mark.parametrize("kind", ["string", "list", "set", "zset", "stream"])
def test_a_record_that_is_no_hash_is_dead_lettered_at_once(
    queue_connection: Any, worker_queue: JobQueue, enqueue: Enqueue, kind: str
) -> None:
    key = "rq:job:job-1"
    {
        "string": lambda: queue_connection.set(key, b"\xff"),
        "list": lambda: queue_connection.rpush(key, "x"),
        "set": lambda: queue_connection.sadd(key, "x"),
        "zset": lambda: queue_connection.zadd(key, {"x": 1}),
        "stream": lambda: queue_connection.xadd(key, {"x": 1}),
    }[kind]()
    queue_connection.rpush("rq:queue:default", "job-1")
    (kept,) = enqueue(1)
    claimed = worker_queue.claim(["default"], 8)
    assert [claim.job_id for claim in claimed.claims] == [kept]
    (dead,) = claimed.dead
    assert (dead.job_id, dead.error_code) == ("job-1", "corrupt_record")
    assert dead.error_message == f"its record is a {kind}, not a hash"
    assert queue_connection.lrange("pagemill:dead:default", 0, -1) == [dead.raw.encode()]
    assert worker_queue.dead_letter([dead]) == 0
    assert json.loads(dead.raw)["type"] == kind


@pytest.mark.parametrize("job_id", [b"a:b", b"", b"\xff\xfe", b"x" * 129, b"a b", b"../../x"])
def test_an_id_that_rq_would_not_accept_is_dead_lettered_at_once(
    queue_connection: redis.Redis, worker_queue: JobQueue, job_id: bytes
) -> None:
    queue_connection.hset(b"rq:job:" + job_id, "status", "queued")
    queue_connection.rpush("rq:queue:default", job_id)
    (dead,) = worker_queue.claim(["default"], 8).dead
    assert dead.job_id.startswith("invalid-")
    assert json.loads(dead.raw)["job_id_hex"] == job_id.hex()
    assert queue_connection.llen("pagemill:dead:default") == 1
    assert worker_queue.dead_letter([dead]) == 0


@pytest.mark.parametrize("kind", ["string", "list", "hash"])
@pytest.mark.parametrize("key", ["rq:executions:job-1", "rq:results:job-1"])
def test_what_lies_where_a_job_needs_a_key_of_its_own_makes_room(
    queue_connection: Any, worker_queue: JobQueue, key: str, kind: str
) -> None:
    write = {"string": queue_connection.set, "list": queue_connection.rpush, "hash": queue_connection.hincrby}[kind]
    write(key, 1)
    put(queue_connection, "job-1", {})
    (claim,) = worker_queue.claim(["default"], 1).claims
    write(f"{key}-other", 1)
    assert worker_queue.acknowledge([Acknowledgement(claim, AttemptState.DONE, {"text": "x"})]) == frozenset()
    assert queue_connection.hget("rq:job:job-1", "status") == b"finished"
    assert queue_connection.exists(f"{key}-other") == 1


@pytest.mark.parametrize("fields", [{"note": "x" * 9_000_000}, {f"f{number}": "x" for number in range(300)}])
def test_a_record_too_large_to_be_a_job_is_not_even_read(
    queue_connection: redis.Redis, worker_queue: JobQueue, fields: dict[str, str]
) -> None:
    put(queue_connection, "job-1", fields)
    (dead,) = worker_queue.claim(["default"], 1).dead
    assert dead.error_message == "its record has more than 256 fields or 8388608 bytes"
    raw = json.loads(dead.raw)
    assert (raw["type"], raw["bytes"] > 8_388_608) == ("hash", "note" in fields)


def test_300_fuzzed_records_are_all_dead_lettered(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    chance = random.Random(1)
    good_data = zlib.compress(json.dumps(GOOD_CALL).encode())
    fuzzers: list[Callable[[], dict[str, object]]] = [
        lambda: {"data": chance.randbytes(chance.randrange(200))},
        lambda: {"data": zlib.compress(chance.randbytes(chance.randrange(200)))},
        lambda: {"data": good_data[: chance.randrange(len(good_data) - 1)]},
        lambda: {"data": zlib.compress(json.dumps(GOOD_CALL[: chance.randrange(4)]).encode())},
        lambda: call(f"module{chance.random()}.function", None, [{"prompt": "x"}], {}),
        lambda: {"status": chance.randbytes(5)},
        lambda: {chance.choice(["created_at", "enqueued_at", "started_at"]): chance.randbytes(9)},
        lambda: {chance.choice(["timeout", "result_ttl", "ttl"]): chance.choice(["x", "1e40", "-7", "\0"])},
        lambda: prompt(prompt=chance.choice([None, 1, [], {}, "", "\ud800", ["x"]])),
        lambda: prompt(
            prompt="x", **{chance.choice(["n", "max_tokens", "top_k", "stop"]): chance.choice([-1, {}, "y"])}
        ),
    ]
    for number in range(300):
        put(queue_connection, f"job-{number}", chance.choice(fuzzers)())
    (good,) = enqueue(1)
    dead: list[DeadRecord] = []
    claims: list[Claim] = []
    while len(dead) + len(claims) < 301:
        claimed = worker_queue.claim(["default"], 64)
        assert claimed.claims or claimed.dead
        dead += claimed.dead
        claims += claimed.claims
        worker_queue.dead_letter(claimed.dead)
    assert [claim.job_id for claim in claims] == [good]
    assert {record.job_id for record in dead} == {f"job-{number}" for number in range(300)}
    counts = worker_queue.counts(["default"])["default"]
    assert (counts.waiting, counts.running, counts.failed, counts.dead) == (0, 1, 300, 300)
