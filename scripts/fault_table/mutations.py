"""Mutations of a real queue record, each a way in which a producer, a bug or a broken disk may spoil one.

Every mutation writes what belongs to one job id, pushes the id to its queue and returns it. All are drawn from a seeded
`random.Random`, so that a failure can be run again.
"""

import hashlib
import json
import math
import pickle
import random
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import redis

from worker.queue.queue_records import MAX_DATA_BYTES

Record = dict[bytes, bytes]
Mutation = Callable[[random.Random, Any, bytes, Record], bytes]

QUEUE_KEY = b"rq:queue:default"
BOMB = zlib.compress(b" " * (64 * MAX_DATA_BYTES), 9)
PICKLE = pickle.dumps(("this", None, ("x",), {}))  # loading it would print a poem
JUNK: tuple[Callable[[random.Random], object], ...] = (
    lambda chance: None,
    lambda chance: chance.choice([True, False]),
    lambda chance: chance.choice([-1, 0, 10**9, 2**63, 10**400]),
    lambda chance: chance.choice([math.nan, math.inf, -math.inf, -0.5, 1e308]),
    lambda chance: chance.choice(["", " ", "\0", "\ud800", "\x1b[2J", "'; DROP TABLE jobs; --", "=cmd()", "<script>"]),
    lambda chance: "x" * chance.choice([129, 513, 20_000]),
    lambda chance: [],
    lambda chance: {},
    lambda chance: [["x"] * 20] * 20,
    lambda chance: {"role": "user"},
    lambda chance: [{"role": chance.choice(["user", "tool"]), "content": chance.choice(["x", "", 1])}],
)
NUMBERS = (b"abc", b"", b"-1", b"-7", b"1e40", b"nan", b"inf", b"0x10", b"9" * 400, b"\xff", b"1 2", b"0", b"3.5")
EPOCHS = (b"nan", b"-nan", b"inf", b"1e400", b"-5", b"9007199254740993", b"0x1p60", b"\0", b"99999999999999999999")
STATUSES = (
    *(b"banana", b"", b"\xff\xfe", b"Status.QUEUED", b"queued\n"),
    *(b"started", b"deferred", b"scheduled", b"finished", b"failed", b"canceled", b"stopped"),
)
ENDED_STATUSES = {b"finished", b"failed", b"canceled", b"stopped"}
PAYLOAD_FIELDS = (
    *("prompt", "messages", "system", "raw", "model", "tenant", "share_prefix", "batch_id", "batch_size", "custom_id"),
    *("metadata", "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop"),
    *("stop_token_ids", "ignore_eos", "schema_version", "n", "logprobs", "__class__", "callback", "webhook"),
)


def write(connection: Any, job_id: bytes, record: Mapping[bytes, bytes]) -> bytes:
    """Write a record as a hash and queue it."""
    if record:
        connection.hset(b"rq:job:" + job_id, mapping=record)
    return push(connection, job_id)


def push(connection: Any, job_id: bytes) -> bytes:
    connection.rpush(QUEUE_KEY, job_id)
    return job_id


def with_call(record: Record, call: object) -> Record:
    return {**record, b"data": zlib.compress(json.dumps(call).encode())}


def payload_of(record: Record) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(zlib.decompress(record[b"data"]))[2][0]
    return payload


def flip_bytes(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    name = chance.choice([name for name, value in record.items() if value])
    value = bytearray(record[name])
    for _ in range(chance.randrange(1, 4)):
        value[chance.randrange(len(value))] ^= chance.randrange(1, 256)
    return write(connection, job_id, {**record, name: bytes(value)})


def cut_data(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    data = record[b"data"]
    tail = chance.choice([b"", b"\0", data])
    return write(connection, job_id, {**record, b"data": data[: chance.randrange(len(data))] + tail})


def random_data(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    noise = chance.randbytes(chance.randrange(200))
    return write(connection, job_id, {**record, b"data": chance.choice([noise, zlib.compress(noise)])})


def bomb(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    return write(connection, job_id, {**record, b"data": BOMB})


def pickled(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    return write(connection, job_id, {**record, b"data": chance.choice([PICKLE, zlib.compress(PICKLE)])})


def foreign_function(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    name = chance.choice(["os.system", "this.d", "builtins.eval", "pagemill.prompt ", "", None, 1, ["pagemill.prompt"]])
    return write(connection, job_id, with_call(record, [name, None, [payload_of(record)], {}]))


def foreign_call(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    call: list[object] = ["pagemill.prompt", None, [payload_of(record)], {}]
    call[chance.randrange(4)] = chance.choice(JUNK)(chance)
    return write(connection, job_id, with_call(record, call[: chance.choice([4, 4, 4, 3, 1, 0])]))


def junk_in_payload(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    payload = payload_of(record)
    for _ in range(chance.randrange(1, 3)):
        payload[chance.choice(PAYLOAD_FIELDS)] = chance.choice(JUNK)(chance)
    return write(connection, job_id, with_call(record, ["pagemill.prompt", None, [payload], {}]))


def deep_json(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    depth = chance.choice([100, 900, 5_000, 100_000])
    nested = chance.choice([b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth])
    field = chance.choice([b"prompt", b"metadata", b"messages"])
    call = b'["pagemill.prompt", null, [{"prompt": "x", "%s": %s}], {}]' % (field, nested)
    return write(connection, job_id, {**record, b"data": zlib.compress(call)})


def foreign_status(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    return write(connection, job_id, {**record, b"status": chance.choice(STATUSES)})


def foreign_number(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    name = chance.choice([b"timeout", b"result_ttl", b"failure_ttl", b"ttl"])
    return write(connection, job_id, {**record, name: chance.choice(NUMBERS)})


def foreign_date(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    name = chance.choice([b"created_at", b"enqueued_at", b"started_at", b"ended_at", b"last_heartbeat"])
    dates = (b"0001-01-01T00:00:00Z", b"9999-12-31T23:59:59.999999Z", b"2026-02-30T00:00:00.0Z", b"now", b"\xff", b"0")
    return write(connection, job_id, {**record, name: chance.choice(dates)})


def own_fields(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    """Spoil the fields in which the queue keeps its leases."""
    spoilt = {
        b"pagemill_epoch": chance.choice(EPOCHS),
        b"pagemill_execution": chance.choice([b"", b"x", b"\xff", b"a:b"]),
        b"pagemill_queue": chance.choice([b"", b"other", b"\xff", b"default"]),
        b"pagemill_acknowledged": chance.choice([b"", b"x"]),
        b"pagemill_tenant": chance.choice([b"", b"\xff", b"x" * 10_000, b"rival"]),
        b"pagemill_crashes": chance.choice([b"1", b"2", b"3", b"4", b"x", *EPOCHS]),
        b"pagemill_crash_log": chance.choice([b"", b"?", b"{}", b"[]\n{", b'{"at": "x"}', b"\xff", b"[" * 9_000]),
        b"pagemill_retries": chance.choice([b"0", b"7", *EPOCHS]),
        b"pagemill_delayed": chance.choice([b"", b"x"]),
    }
    chosen = chance.sample(sorted(spoilt), chance.randrange(1, 4))
    return write(connection, job_id, {**record, **{name: spoilt[name] for name in chosen}})


def rq_features(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    """Ask RQ for things that would run code or reach out."""
    extra = {
        b"success_callback_name": b"os.system",
        b"failure_callback_name": b"os.system",
        b"stopped_callback_name": b"os.system",
        b"webhooks": b'[{"url": "http://127.0.0.1:9/"}]',
        b"retries_left": chance.choice([b"3", b"x"]),
        b"retry_intervals": chance.choice([b"[1]", b"x"]),
        b"repeats_left": b"7",
        b"dependency_ids": chance.choice([b"[]", b"x", b'["y"]']),
        b"rate_limit_key": b"limit",
        b"group_id": b"g",
        b"origin": chance.choice([b"other", b"\xff", b""]),
        b"worker_name": chance.choice([b"worker-1", b"other", b"\xff"]),
        b"serializer": b"pickle",
        b"meta": PICKLE,
    }
    chosen = chance.sample(sorted(extra), chance.randrange(1, 6))
    return write(connection, job_id, {**record, **{name: extra[name] for name in chosen}})


def missing_fields(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    gone = chance.sample(sorted(record), chance.randrange(1, len(record)))
    return write(connection, job_id, {name: value for name, value in record.items() if name not in gone})


def huge_field(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    name = chance.choice([b"description", b"meta", b"note", b"status", b"enqueued_at", b"data", b"timeout"])
    return write(
        connection, job_id, {**record, name: chance.choice([b"7", b"\xff"]) * chance.choice([70_000, 12_000_000])}
    )


def many_fields(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    return write(connection, job_id, {**record, **{b"f%d" % number: b"x" for number in range(3_000)}})


def odd_id(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    odd = chance.choice(
        [b":", b" ", b"\n", b"\xff\xfe", b"\0", b"../", b"x" * 200, b"'; DROP TABLE jobs; --", b"\xc3\xa9"]
    )
    return write(connection, job_id + odd, record)


def another_type(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    put_another_type(chance, connection, b"rq:job:" + job_id)
    return push(connection, job_id)


def spoilt_neighbour(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    """Leave the record alone, or spoil it too, and put something else where a key beside it will be needed."""
    keys = (b"rq:executions:%s", b"rq:results:%s", b"rq:job:%s:dependents", b"rq:job:%s:dependencies")
    key = chance.choice((*keys, b"pagemill:tokens:%s")) % job_id
    put_another_type(chance, connection, key)
    data = chance.choice([record[b"data"], b"?"])
    return write(connection, job_id, {**record, b"data": data})


def put_another_type(chance: random.Random, connection: Any, key: bytes) -> None:
    value = chance.randbytes(chance.choice([3, 100_000]))
    writers: list[Callable[[], object]] = [
        lambda: connection.set(key, value),
        lambda: connection.rpush(key, value, b"x"),
        lambda: connection.sadd(key, value, b"x"),
        lambda: connection.zadd(key, {value: 1, b"x": math.inf}),
        lambda: connection.xadd(key, {b"x": value}),
    ]
    chance.choice(writers)()


def queued_twice(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    push(connection, job_id)
    return write(connection, job_id, chance.choice([record, {**record, b"data": b"?"}]))


def no_record(chance: random.Random, connection: Any, job_id: bytes, record: Record) -> bytes:
    return push(connection, job_id)


MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bytes, cut_data, random_data, bomb, pickled, foreign_function, foreign_call, junk_in_payload, deep_json),
    *(foreign_status, foreign_number, foreign_date, own_fields, rq_features, missing_fields, huge_field, many_fields),
    *(odd_id, another_type, spoilt_neighbour, queued_twice, no_record),
)


def real_record(connection: redis.Redis, job_id: str) -> Record:
    """Return a record as a producer wrote it."""
    record: Any = connection.hgetall(f"rq:job:{job_id}")
    assert record, "the record to mutate"
    return dict(record)


def sql_id(job_id: bytes) -> str:
    """Return the id under which SQL knows a job: that of a record which cannot have a row is made from its own."""
    is_possible = re.fullmatch(rb"[A-Za-z0-9_-]{1,128}", job_id)
    return job_id.decode() if is_possible else f"invalid-{hashlib.sha1(job_id).hexdigest()}"


def has_ended_by_its_own_word(connection: Any, job_id: bytes) -> bool:
    """Tell whether a job was queued without a record, or with one that says that it has ended."""
    key = b"rq:job:" + job_id
    kind = connection.type(key)
    return kind == b"none" or (kind == b"hash" and connection.hget(key, "status") in ENDED_STATUSES)
