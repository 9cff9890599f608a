"""What may run is decided by name, before anything is imported; and nothing turns pickle on."""

import json
import pickle
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import ValidationError
from rq import Callback, Queue
from rq.job import Job
from rq.serializers import JSONSerializer, PickleSerializer

from tests.functions import tasks
from tests.worker.fakes import make_flow
from worker.functions.allow_list import NO_FUNCTIONS, AllowList, FunctionRefused
from worker.functions.rq_jobs import AllowListedJob, allow_listed
from worker.queue.queue_records import FunctionRecord, RecordError, read_runnable
from worker.rq_worker import PagemillWorker
from worker.settings_model import Settings
from worker.sql.store import JobStore

TASKS = "tests.functions.tasks"
ONE = AllowList((f"{TASKS}.add",))
ALL = AllowList((f"{TASKS}.*",))
NEVER_IMPORTED = "antigravity"  # of the standard library; nobody imports it


@pytest.mark.parametrize("name", [f"{TASKS}.add", f"{TASKS}.sub.anything"])
def test_names_under_a_module_are_allowed(name: str) -> None:
    assert ALL.allows(name)


@pytest.mark.parametrize(
    "name",
    [
        *("os.system", "add", "", f"{TASKS}", f"{TASKS}.", f"{TASKS}x.add", f"x.{TASKS}.add", f"{TASKS}.add()"),
        *(f"{TASKS}.__loader__.load_module", f"{TASKS}._private", f"{TASKS}.add ", f"{TASKS}..add", f"{TASKS}.\nadd"),
        *(None, 1, ["os.system"], {"os": "system"}),
    ],
)
def test_other_names_are_not(name: object) -> None:
    assert not ALL.allows(name)
    assert not NO_FUNCTIONS.allows(name)
    with pytest.raises(FunctionRefused, match="is not among the functions"):
        ALL.check(name)


def test_one_function_allows_no_other() -> None:
    assert ONE.allows(f"{TASKS}.add")
    assert not ONE.allows(f"{TASKS}.fail")
    assert not ONE.allows(f"{TASKS}.add.__call__")


@pytest.mark.parametrize(
    "entry", ["add", "*", "tasks.*.add", "tasks.", ".tasks", "tasks add", "os.system;", "a.*b", ""]
)
def test_setting_takes_dotted_names_only(entry: str) -> None:
    with pytest.raises(ValidationError, match="is no dotted name"):
        Settings(functions=(entry,))


def reread(job: Job, allow_list: AllowList) -> AllowListedJob:
    """Return a job as a worker with this allow-list reads it."""
    read = allow_listed(allow_list).fetch(job.id, connection=job.connection, serializer="json")
    assert isinstance(read, AllowListedJob)
    return read


def test_what_a_module_only_imports_is_refused(queue: Queue) -> None:
    """ "tasks.*" allows what tasks defines, not what is to be had through it."""
    for name in (f"{TASKS}.getcwd", f"{TASKS}.redis.from_url", f"{TASKS}.threading.Thread"):
        job = reread(queue.enqueue(name), ALL)
        with pytest.raises(FunctionRefused, match="is not defined in"):
            _ = job.func


def test_function_that_is_named_itself_may_come_from_elsewhere(queue: Queue) -> None:
    name = f"{TASKS}.getcwd"
    assert reread(queue.enqueue(name), AllowList((name,))).func is tasks.getcwd


def test_nothing_is_imported_for_a_name_that_is_not_allowed(queue: Queue) -> None:
    name = f"{NEVER_IMPORTED}.fly"
    callback = Callback(name)
    job = reread(queue.enqueue(name, on_success=callback, on_failure=callback, on_stopped=callback), ALL)
    for attribute in ("func", "success_callback", "failure_callback", "stopped_callback"):
        with pytest.raises(FunctionRefused, match="is not among the functions"):
            getattr(job, attribute)
    assert NEVER_IMPORTED not in sys.modules


def test_methods_are_refused(queue: Queue) -> None:
    job = queue.enqueue(f"{TASKS}.add")
    data = zlib.compress(json.dumps(["upper", "an instance", [], {}]).encode())
    queue.connection.hset(job.key, "data", data)
    with pytest.raises(FunctionRefused, match="methods of objects"):
        _ = reread(job, ALL).func


def call(function: object, *, instance: object = None, args: object = (), kwargs: object = None) -> dict[bytes, bytes]:
    """Return a record with this call, as Redis has it."""
    data = zlib.compress(json.dumps([function, instance, args, {} if kwargs is None else kwargs]).encode())
    return {b"status": b"queued", b"enqueued_at": b"2026-01-01T00:00:00.000000Z", b"data": data}


def test_record_of_an_allowed_function_is_read() -> None:
    assert read_runnable(call(f"{TASKS}.add", args=[1], kwargs={"other": 2}), ONE) == FunctionRecord()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (call(f"{TASKS}.fail"), "wrong_function"),
        (call([f"{TASKS}.add"]), "wrong_function"),
        (call(f"{TASKS}.add", instance="x"), "wrong_arguments"),
        (call(f"{TASKS}.add", args={"a": 1}), "wrong_arguments"),
        (call(f"{TASKS}.add", kwargs=[1]), "wrong_arguments"),
    ],
)
def test_other_records_are_refused(fields: dict[bytes, bytes], code: str) -> None:
    with pytest.raises(RecordError) as caught:
        read_runnable(fields, ONE)
    assert caught.value.code == code


def test_no_option_of_rqs_makes_the_worker_read_pickles(connection: redis.Redis) -> None:
    pickling = Queue("default", connection=connection, serializer="pickle")
    for options in ({}, {"serializer": "pickle"}, {"serializer": PickleSerializer}, {"serializer": pickle}):
        worker = PagemillWorker([pickling], connection=connection, job_class=Job, **options)
        assert worker.serializer is JSONSerializer
        assert [queue.serializer for queue in worker.queues] == [JSONSerializer]
        assert issubclass(worker.job_class, AllowListedJob)
        assert all(issubclass(queue.job_class, AllowListedJob) for queue in worker.queues)


def test_no_setting_has_to_do_with_serializers() -> None:
    assert not [name for name in Settings.model_fields if "serial" in name or "pickle" in name or "class" in name]


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_pickles_are_never_loaded(connection: redis.Redis, sqlite_store: JobStore, tmp_path: Path) -> None:
    job = Queue("default", connection=connection).enqueue(tasks.add, Bomb(tmp_path / "bomb"))
    with_meta = Queue("default", connection=connection, serializer="json").enqueue(tasks.note_in_meta)
    connection.hset(with_meta.key, "meta", pickle.dumps(Bomb(tmp_path / "meta")))
    make_flow(connection, sqlite_store, functions=(f"{TASKS}.*",)).run(burst=True)
    detail = sqlite_store.job(job.id)
    assert detail is not None
    assert detail.error_code == "pickled_record"
    assert not list(tmp_path.glob("[bm]*"))


def test_webhooks_are_never_called(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    job = queue.enqueue(tasks.add)
    url = "http://192.0.2.1/"
    queue.connection.hset(job.key, "webhooks", json.dumps([{"url": url, "job_status": "finished", "method": "POST"}]))
    read = reread(job, ALL)
    assert read.webhooks
    with caplog.at_level("WARNING", logger="rq"):
        read.send_webhooks("finished")
    assert "its webhooks are not sent" in caplog.text
