"""The workers of the queue benchmark: each drains no-op jobs once, in a process of its own, and says what it took."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, UnixDomainSocketConnection
from redis.retry import Retry
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine, ModelIdentity
from engine.grammar import Grammar
from engine.offload_policy import CopyTime
from engine.request import FinishReason, Request, RequestState, SamplingParams
from engine.step_plan import Launched, SchedulerOutput
from scripts.benchmarks.memory import peak_rss_bytes
from scripts.benchmarks.noop import noop
from worker.client import submit
from worker.jobs import PromptJob
from worker.records import Claim, Outcome
from worker.running.flow import Flow, ServedModel
from worker.settings_model import Settings
from worker.sql import schema
from worker.sql.attempts import BegunAttempt, BegunAttempts
from worker.sql.database import open_database
from worker.sql.fleet import WorkerCounters, WorkerRecord
from worker.sql.store import JobStore
from worker.sql.tables import utc_now
from worker.sql.unfinished import UnfinishedJobs
from worker.sql.worker_hours import AccountEntry, WorkerHour

END_TOKEN = 1
CONFIG = EngineConfig(num_blocks=65_536, max_model_len=1024, block_size=16, max_num_seqs=1024, token_budget=8192)
MODEL = ModelIdentity(name="instant", vocab_size=2, stop_token_ids=frozenset({END_TOKEN}))


@dataclass(frozen=True, slots=True)
class QueueRun:
    """One system's run over `jobs` no-op jobs. CPU is of the worker's process and of the server's."""

    system: str
    jobs: int
    seconds: float
    jobs_per_second: float
    round_trips_per_job: float
    worker_cpu_ms_per_job: float
    server_cpu_ms_per_job: float
    peak_rss_bytes: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class RoundTrips:
    """How many times something was sent to the server; a pipeline and a script are one each."""

    number: int = 0


class CountingConnection(UnixDomainSocketConnection):
    """A connection that counts what it sends."""

    def __init__(self, *, round_trips: RoundTrips, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._round_trips = round_trips

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self._round_trips.number += 1
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]


def run_system(system: str, socket: str, database_url: str, num_jobs: int, max_jobs: int) -> QueueRun:
    """Enqueue no-op jobs into an emptied server, let the system drain them, and check that it did."""
    round_trips = RoundTrips()
    options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "driver_info": None,
        "socket_timeout": 30.0,
    }
    pool = ConnectionPool(connection_class=CountingConnection, path=socket, round_trips=round_trips, **options)
    connection = redis.Redis.from_pool(pool)
    connection.flushdb()
    drain, num_done = SYSTEMS[system](Task(connection, database_url, num_jobs, max_jobs))
    round_trips.number = 0
    server_cpu, cpu, started = _server_cpu(connection), time.process_time(), time.perf_counter()
    drain()
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    trips = round_trips.number
    server_cpu_s = _server_cpu(connection) - server_cpu
    assert num_done() == num_jobs, f"{system} has done {num_done()} of {num_jobs} jobs"
    return QueueRun(
        system=system,
        jobs=num_jobs,
        seconds=seconds,
        jobs_per_second=num_jobs / seconds,
        round_trips_per_job=trips / num_jobs,
        worker_cpu_ms_per_job=cpu_s * 1e3 / num_jobs,
        server_cpu_ms_per_job=server_cpu_s * 1e3 / num_jobs,
        peak_rss_bytes=peak_rss_bytes(),
    )


@dataclass(frozen=True, slots=True)
class Task:
    """What a system is to do: `max_jobs` is how many jobs our worker may hold at once."""

    connection: redis.Redis
    database_url: str
    num_jobs: int
    max_jobs: int


Prepared = tuple[Callable[[], None], Callable[[], int]]  # drains the queue; returns how many jobs are done


def prepare_simple_worker(task: Task) -> Prepared:
    """RQ's stock worker that does not fork: its fastest."""
    queue = Queue("default", connection=task.connection, serializer=JSONSerializer)
    for start in range(0, task.num_jobs, 500):
        numbers = range(start, min(start + 500, task.num_jobs))
        calls = [Queue.prepare_data(noop, args=({"prompt": f"question {n}"},), result_ttl=86_400) for n in numbers]
        queue.enqueue_many(calls)
    worker = SimpleWorker([queue], connection=task.connection, serializer=JSONSerializer)

    def drain() -> None:
        worker.work(burst=True, logging_level="WARNING")

    return drain, lambda: _num_finished(task.connection)


def prepare_pagemill(task: Task, store: JobStore) -> Prepared:
    """Our worker; only its engine is replaced, by one that answers at once."""
    for start in range(0, task.num_jobs, 5000):
        numbers = range(start, min(start + 5000, task.num_jobs))
        submit(task.connection, (f"question {number}" for number in numbers))
    detokenize = Detokenizer(lambda token_ids: "")
    engine = InstantEngine(CONFIG, NoRunner(), MODEL, detokenize)
    model = ServedModel(engine, _encode, lambda job: (None,), detokenize, frozenset({MODEL.name}), 1, lambda: 0)
    machine = ("localhost", 1, MODEL.name, "none", "none", CONFIG.block_size, CONFIG.num_blocks, 1, "0", "0", "0")
    record = WorkerRecord("benchmark", *machine, started_at=utc_now())
    flow = Flow(Settings(data_dir=Path("unused"), max_jobs=task.max_jobs), task.connection, store, model, record)
    return (lambda: flow.run(burst=True)), lambda: _num_finished(task.connection)


def prepare_without_sql(task: Task) -> Prepared:
    return prepare_pagemill(task, NoStore())


def prepare_with_sql(task: Task) -> Prepared:
    return prepare_pagemill(task, JobStore(open_database(task.database_url)))


SYSTEMS: Mapping[str, Callable[[Task], Prepared]] = {
    "rq SimpleWorker": prepare_simple_worker,
    "pagemill, without SQL": prepare_without_sql,
    "pagemill, SQLite": prepare_with_sql,
    "pagemill, PostgreSQL": prepare_with_sql,
}


class NoRunner:
    """The model of an engine that has none."""

    def launch(self, plan: SchedulerOutput) -> Launched:
        raise NotImplementedError

    def probe(self) -> None:
        raise NotImplementedError

    def take_copy_times(self) -> Sequence[CopyTime]:
        return ()

    def scrub(self, block_ids: list[int]) -> None:
        raise NotImplementedError


class InstantEngine(Engine):
    """Finishes all that was added in one step, with one token each."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._added: list[Request] = []

    @property
    def has_work(self) -> bool:
        return bool(self._added)

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        tenant: str = "",
        grammar: Grammar | None = None,
    ) -> Request:
        request = self._new_request(request_id, prompt, params, tenant)
        self._added.append(request)
        return request

    def abort(self, request_id: str) -> Request | None:
        return None

    def step(self) -> list[Request]:
        finished, self._added = self._added, []
        now = self._clock()
        for request in finished:
            request.token_ids.append(END_TOKEN)
            request.state, request.finish_reason = RequestState.FINISHED, FinishReason.STOP
            request.figures.token_times.append(now)
            request.figures.finished_at = now
        return finished


class NoStore(JobStore):
    """A store that takes all jobs and keeps none. The worker's chores find an empty database beside it."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()  # until nobody has the store any more
        url = f"sqlite:///{self._folder.name}/pagemill.db"
        schema.upgrade(url)
        super().__init__(open_database(url))

    def begin_attempts(self, claims: Sequence[Claim], worker_name: str) -> BegunAttempts:
        begun = {claim.job_id: BegunAttempt(1, 0) for claim in claims}
        return BegunAttempts(begun, {}, frozenset())

    def finish_attempts(self, outcomes: Sequence[Outcome], account: AccountEntry | None = None) -> frozenset[str]:
        return frozenset()

    def register_worker(self, record: WorkerRecord) -> None:
        pass

    def heartbeat_worker(
        self, name: str, counters: WorkerCounters, engine_age: timedelta, hours: tuple[WorkerHour, ...] = ()
    ) -> None:
        pass

    def stop_worker(self, name: str) -> None:
        pass

    def count_unfinished(self) -> UnfinishedJobs:
        return UnfinishedJobs(0, None)


def _encode(job: PromptJob) -> list[int]:
    return [0]


def _num_finished(connection: redis.Redis) -> int:
    return connection.zcard("rq:finished:default")


def _server_cpu(connection: redis.Redis) -> float:
    """Return the CPU seconds that the server has taken."""
    cpu: Any = connection.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])
