"""The ends of jobs, as every reader of RQ's keys sees them."""

from collections.abc import Callable

import pytest
import redis
from rq import Queue, Worker
from rq.job import Job, JobStatus
from rq.registry import CanceledJobRegistry
from rq.results import Result

from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.records import AttemptState, Claim

Enqueue = Callable[..., list[str]]


def fetch(connection: redis.Redis, job_id: str) -> Job:
    return Job.fetch(job_id, connection=connection, serializer="json")


def claim_one(queue: JobQueue) -> Claim:
    (claim,) = queue.claim(["default"], 1).claims
    return claim


def done(claim: Claim) -> Acknowledgement:
    return Acknowledgement(claim, AttemptState.DONE, {"text": "ünïcode", "n": [1, 2]})


def assert_no_trace_of_execution(connection: redis.Redis, claim: Claim) -> None:
    member = f"{claim.job_id}:{claim.execution_id}"
    assert not connection.exists(f"rq:execution:{member}", f"rq:executions:{claim.job_id}")
    assert connection.zscore("rq:wip:default", member) is None
    assert connection.zscore("pagemill:leases:default", member) is None
    assert not connection.sismember("rq:worker:worker-1:executions", member)


def test_a_done_job_is_finished_with_its_result(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    claim = claim_one(worker_queue)
    assert worker_queue.acknowledge([done(claim)]) == frozenset()
    job = fetch(queue_connection, job_id)
    assert job.get_status() == JobStatus.FINISHED
    assert job.return_value() == {"text": "ünïcode", "n": [1, 2]}
    assert job.ended_at is not None
    assert job.started_at is not None
    assert job.ended_at >= job.started_at
    assert job.worker_name == "worker-1"
    result = job.latest_result()
    assert result is not None
    assert (result.type, result.worker_name) == (Result.Type.SUCCESSFUL, "worker-1")
    assert result.execution_id == claim.execution_id
    assert result.execution_started_at is not None
    assert result.execution_ended_at is not None
    assert result.execution_ended_at >= result.execution_started_at
    queue = Queue("default", connection=queue_connection)
    assert queue.finished_job_registry.get_job_ids() == [job_id]
    assert 86_000 < queue_connection.ttl(job.key) <= 86_400
    assert 86_000 < queue_connection.ttl(f"rq:results:{job_id}") <= 86_400
    assert_no_trace_of_execution(queue_connection, claim)


def test_a_failed_job_shows_its_reason(queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue) -> None:
    (job_id,) = enqueue(1)
    claim = claim_one(worker_queue)
    worker_queue.acknowledge([Acknowledgement(claim, AttemptState.FAILED, error="numerical_error: NaN in row 3")])
    job = fetch(queue_connection, job_id)
    assert job.is_failed
    result = job.latest_result()
    assert result is not None
    assert (result.type, result.exc_string) == (Result.Type.FAILED, "numerical_error: NaN in row 3")
    assert Queue("default", connection=queue_connection).failed_job_registry.get_job_ids() == [job_id]
    assert queue_connection.ttl(job.key) > 86_400 * 300
    assert_no_trace_of_execution(queue_connection, claim)


def test_a_failed_job_can_be_requeued_by_rq_and_done_then(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    worker_queue.acknowledge([Acknowledgement(claim_one(worker_queue), AttemptState.FAILED, error="x")])
    fetch(queue_connection, job_id).requeue()
    assert worker_queue.acknowledge([done(claim_one(worker_queue))]) == frozenset()
    job = fetch(queue_connection, job_id)
    assert job.is_finished
    assert len(job.results()) == 2
    assert Queue("default", connection=queue_connection).failed_job_registry.count == 0


def test_a_cancelled_job_is_in_the_canceled_registry(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    claim = claim_one(worker_queue)
    worker_queue.cancel(job_id)
    worker_queue.acknowledge([Acknowledgement(claim, AttemptState.CANCELLED)])
    assert fetch(queue_connection, job_id).is_canceled
    assert CanceledJobRegistry("default", connection=queue_connection).get_job_ids() == [job_id]
    assert worker_queue.cancelling() == frozenset()
    assert_no_trace_of_execution(queue_connection, claim)


def test_a_repeated_acknowledgement_finds_its_work_done(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    end = done(claim_one(worker_queue))
    assert worker_queue.acknowledge([end]) == frozenset()
    assert worker_queue.acknowledge([end]) == frozenset()
    assert len(fetch(queue_connection, job_id).results()) == 1


def test_a_batch_is_acknowledged_whatever_its_members(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueue(4)
    claims = worker_queue.claim(["default"], 4).claims
    worker_queue.requeue([claims[1]])
    states = (AttemptState.DONE, AttemptState.DONE, AttemptState.FAILED, AttemptState.CANCELLED)
    ends = [Acknowledgement(claim, state) for claim, state in zip(claims, states, strict=True)]
    assert worker_queue.acknowledge(ends) == {claims[1].execution_id}
    counts = worker_queue.counts(["default"])["default"]
    assert (counts.waiting, counts.running, counts.finished, counts.failed, counts.canceled) == (1, 0, 1, 1, 1)


@pytest.mark.parametrize(("result_ttl", "expected"), [(500, range(1, 501)), (-1, [-1]), (None, range(1, 78))])
def test_result_ttl_is_the_jobs_own_or_the_default(
    queue_connection: redis.Redis, result_ttl: int | None, expected: object
) -> None:
    target = Queue("default", connection=queue_connection, serializer="json")
    job = target.enqueue("pagemill.prompt", {"prompt": "x"}, result_ttl=result_ttl)
    queue = JobQueue(queue_connection, "worker-1", 60.0, default_result_ttl_seconds=77)
    queue.acknowledge([done(claim_one(queue))])
    assert queue_connection.ttl(job.key) in expected  # type: ignore[operator]
    assert queue_connection.ttl(f"rq:results:{job.id}") in expected  # type: ignore[operator]
    assert target.finished_job_registry.get_job_ids() == [job.id]


def test_result_ttl_zero_keeps_no_result(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    target = Queue("default", connection=queue_connection, serializer="json")
    job = target.enqueue("pagemill.prompt", {"prompt": "x"}, result_ttl=0)
    end = done(claim_one(worker_queue))
    assert worker_queue.acknowledge([end]) == frozenset()
    assert worker_queue.acknowledge([end]) == frozenset()
    assert target.finished_job_registry.count == 0
    assert not queue_connection.exists(f"rq:results:{job.id}")
    assert 0 < queue_connection.ttl(job.key) <= 60


def test_the_workers_record_counts_jobs(queue_connection: redis.Redis, enqueue: Enqueue) -> None:
    worker = Worker(["default"], connection=queue_connection, name="counted")
    worker.register_birth()
    queue = JobQueue(queue_connection, "counted", 60.0)
    enqueue(3)
    claims = queue.claim(["default"], 3).claims
    queue.acknowledge([done(claims[0]), done(claims[1]), Acknowledgement(claims[2], AttemptState.FAILED, error="x")])
    worker.refresh()
    assert (worker.successful_job_count, worker.failed_job_count) == (2, 1)
    assert worker.total_working_time >= 0
    worker.register_death()


def test_an_unknown_worker_gets_no_record(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueue(1)
    worker_queue.acknowledge([done(claim_one(worker_queue))])
    assert not queue_connection.exists("rq:worker:worker-1")


def test_dependents_are_enqueued_when_their_job_is_done(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    target = Queue("default", connection=queue_connection, serializer="json")
    parent = target.enqueue("pagemill.prompt", {"prompt": "first"})
    child = target.enqueue("pagemill.prompt", {"prompt": "second"}, depends_on=parent)
    foreign = Queue("foreign", connection=queue_connection).enqueue("os.getcwd", depends_on=parent)  # pickled
    worker_queue.acknowledge([done(claim_one(worker_queue))])
    assert claim_one(worker_queue).job_id == child.id
    assert queue_connection.lrange("rq:queue:foreign", 0, -1) == [foreign.id.encode()]
    assert Job.fetch(foreign.id, connection=queue_connection).func_name == "os.getcwd"


def test_dependents_of_a_failed_job_run_only_where_they_allow_it(
    queue_connection: redis.Redis, worker_queue: JobQueue
) -> None:
    target = Queue("default", connection=queue_connection, serializer="json")
    parent = target.enqueue("pagemill.prompt", {"prompt": "first"})
    child = target.enqueue("pagemill.prompt", {"prompt": "second"}, depends_on=parent)
    worker_queue.acknowledge([Acknowledgement(claim_one(worker_queue), AttemptState.FAILED, error="x")])
    assert worker_queue.claim(["default"], 1).claims == ()
    assert fetch(queue_connection, child.id).get_status() == JobStatus.DEFERRED


def test_callbacks_of_a_record_are_not_even_imported(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    for callback in ("success", "failure", "stopped"):
        queue_connection.hset(f"rq:job:{job_id}", f"{callback}_callback_name", "no_such_module.no_such_function")
    queue_connection.sadd(f"rq:job:{job_id}:dependents", "nobody")
    assert worker_queue.acknowledge([done(claim_one(worker_queue))]) == frozenset()
    assert fetch(queue_connection, job_id).is_finished
