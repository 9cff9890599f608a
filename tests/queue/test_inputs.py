"""Jobs that wait for others and read their outputs: as RQ sees them, and what a worker makes of them."""

from collections.abc import Mapping

import pytest
import redis
from rq import Queue
from rq.job import Dependency, Job, JobStatus

from worker.errors import InvalidJob
from worker.inputs import INPUT_FAILED, INPUTS_PENDING, InputEnd, filled
from worker.jobs import output_marker, parse_job
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.queue.submission import enqueue, prepare, prepare_one, submit
from worker.records import AttemptState, Claim, JobState


def joining(*job_ids: str) -> dict[str, object]:
    return {"prompt": " and ".join(map(output_marker, job_ids)), "inputs": list(job_ids)}


def deferred(connection: redis.Redis, *job_ids: str) -> str:
    """Submit a job that waits for others; return its id."""
    job = prepare_one(joining(*job_ids))
    list(enqueue(connection, [job]))
    return job.job_id


def end(worker_queue: JobQueue, *claims: Claim, state: AttemptState = AttemptState.DONE) -> None:
    worker_queue.acknowledge([Acknowledgement(claim, state, {"text": "x"}) for claim in claims])


def claim_all(worker_queue: JobQueue) -> dict[str, Claim]:
    return {claim.job_id: claim for claim in worker_queue.claim(["default"], 100).claims}


def test_job_waits_for_all_its_inputs_as_a_dependent_of_rqs(
    queue_connection: redis.Redis, worker_queue: JobQueue
) -> None:
    first, second = submit(queue_connection, ["first", "second"])
    waiting = deferred(queue_connection, first, second)
    job = Job.fetch(waiting, connection=queue_connection, serializer="json")
    assert job.get_status() is JobStatus.DEFERRED
    assert {dependency.id for dependency in job.fetch_dependencies()} == {first, second}
    queue = Queue("default", connection=queue_connection, serializer="json")
    assert queue.deferred_job_registry.get_job_ids() == [waiting]

    claims = claim_all(worker_queue)
    assert set(claims) == {first, second}
    end(worker_queue, claims[first])
    assert job.get_status() is JobStatus.DEFERRED
    end(worker_queue, claims[second])
    assert job.get_status() is JobStatus.QUEUED
    assert list(claim_all(worker_queue)) == [waiting]


def test_jobs_that_end_together_release_what_waits_for_them_once(
    queue_connection: redis.Redis, worker_queue: JobQueue
) -> None:
    inputs = submit(queue_connection, ["a", "b", "c"])
    waiting = deferred(queue_connection, *inputs)
    end(worker_queue, *claim_all(worker_queue).values())
    assert queue_connection.lrange("rq:queue:default", 0, -1) == [waiting.encode()]


def test_failed_input_releases_too(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    """What its failure means is for the worker to say, in the job's own error."""
    (only,) = submit(queue_connection, ["only"])
    waiting = deferred(queue_connection, only)
    end(worker_queue, *claim_all(worker_queue).values(), state=AttemptState.FAILED)
    assert list(claim_all(worker_queue)) == [waiting]


def test_job_whose_inputs_have_ended_or_expired_is_queued_at_once(
    queue_connection: redis.Redis, worker_queue: JobQueue
) -> None:
    (done,) = submit(queue_connection, ["done"])
    end(worker_queue, *claim_all(worker_queue).values())
    waiting = deferred(queue_connection, done, "expired")
    assert list(claim_all(worker_queue)) == [waiting]


def test_submitting_again_changes_nothing(queue_connection: redis.Redis) -> None:
    (only,) = submit(queue_connection, ["only"])
    jobs = prepare([joining(only)])
    for _ in range(2):
        list(enqueue(queue_connection, jobs))
    assert queue_connection.llen("rq:queue:default") == 1
    assert queue_connection.zcard("rq:deferred:default") == 1


def test_bare_rq_producer_may_do_the_same(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    (only,) = submit(queue_connection, ["only"])
    queue = Queue("default", connection=queue_connection, serializer="json")
    depends_on = Dependency(jobs=[only], allow_failure=True)
    job = queue.enqueue("pagemill.prompt", joining(only), depends_on=depends_on)
    end(worker_queue, *claim_all(worker_queue).values())
    (claim,) = claim_all(worker_queue).values()
    assert (claim.job_id, claim.job.inputs) == (job.id, (only,))


ENDS: Mapping[str, InputEnd] = {
    "a": InputEnd("default", JobState.DONE, "one {output:b}", None),
    "b": InputEnd("default", JobState.DONE, "two", None),
    "failed": InputEnd("default", JobState.FAILED, None, "context_length: too long"),
    "cancelled": InputEnd("default", JobState.CANCELLED, "so far", None),
    "running": InputEnd("default", JobState.RUNNING, None, None),
    "elsewhere": InputEnd("acme", JobState.DONE, "a secret", None),
}


def test_outputs_take_the_place_of_their_markers_once() -> None:
    """What looks like a marker in an output, or names no input, is text."""
    job = parse_job({"prompt": "{output:a}, {output:b}, {output:c}", "inputs": ["a", "b"]})
    assert filled(job, ENDS).prompt == "one {output:b}, two, {output:c}"
    messages = [{"role": "user", "content": "{output:b}{output:b}"}, {"role": "assistant", "content": "-"}]
    job = parse_job({"messages": messages, "inputs": ["b"]})
    assert [message.content for message in filled(job, ENDS).messages or ()] == ["twotwo", "-"]


@pytest.mark.parametrize(
    ("job_id", "code", "message"),
    [
        ("failed", INPUT_FAILED, "inputs: the job failed is failed: context_length: too long"),
        ("cancelled", INPUT_FAILED, "inputs: the job cancelled is cancelled"),
        ("running", INPUTS_PENDING, "inputs: the job running has not ended yet"),
        ("elsewhere", INPUT_FAILED, "inputs: the tenant default has no job elsewhere"),
        ("unknown", INPUT_FAILED, "inputs: the tenant default has no job unknown"),
    ],
)
def test_input_without_an_output_has_its_reason(job_id: str, code: str, message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        filled(parse_job(joining(job_id)), ENDS)
    assert (caught.value.code, str(caught.value)) == (code, message)


def test_input_that_no_text_mentions_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"^inputs: names the job abc, but no text says \{output:abc\}$"):
        parse_job({"prompt": "hello", "inputs": ["abc"]})
