"""What a version writes besides jobs: roll-ups, schedules, batches of files, collections, the outbox, the service's."""

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import Engine, insert

from tests.batch.batches import batch_of
from tests.cron.conftest import schedule_of
from tests.sql.builders import START, after, claim_of, outcome_of, stats_of
from worker.batch.records import LineFault, job_id_of
from worker.batch.store import BatchStore
from worker.cron.leader import Leadership
from worker.cron.planning import plan
from worker.cron.records import RunState
from worker.cron.run_store import RunStore
from worker.cron.schedule_store import ScheduleStore
from worker.openai_api.fields import Endpoint
from worker.records import AttemptUsage, Choice
from worker.sql import collections, outbox, summaries
from worker.sql.api_files import ApiFile, ApiFiles
from worker.sql.api_keys import ApiKeys
from worker.sql.database import reading, writing
from worker.sql.fleet import WorkerCounters
from worker.sql.rollups.rolling import Roller
from worker.sql.store import JobStore
from worker.sql.summaries import NewSummary, Version
from worker.sql.tables import OutboxRow, SummaryState
from worker.sql.worker_hours import WorkerHour

BATCH = "batch_00000000000000000000f11e"
SCHEDULE = "nightly"


def write_all(database: Engine, store: JobStore, epoch: int) -> None:
    """Write rows of all these tables; `epoch` is above those of the jobs that are there."""
    use_figures(store, epoch)
    run_batch(database, store, epoch + 1)
    run_schedule(database)
    fill_collection(database, store, epoch + 2)
    fill_outbox(database)
    serve(database)
    Roller(database, now=lambda: after(4 * 3600)).run()


def use_figures(store: JobStore, epoch: int) -> None:
    """End a job that has all figures, and write a worker's account of its hour."""
    claim = claim_of("with-figures", epoch, tenant="acme", logprobs=True)
    store.begin_attempts([claim], "w-running")
    usage = AttemptUsage(1.5, 0.25, 2.5, 43, 3, 2.0, 3.0, 80.0, 110.0, 112.0)
    stats = stats_of(kv_blocks_limit=20, kv_block_seconds_limit=9.5, drafted_tokens=8, accepted_tokens=5)
    logprobs = [{"token_id": 5, "logprob": -0.5, "top": [[5, -0.5], [6, -1.25]]}]
    second = Choice(1, "It is ü.", (5, 9), "length", logprobs, mean_logprob=-0.75)
    outcome = outcome_of(claim, usage=usage, stats=stats, logprobs=logprobs, choices=(second,), mean_logprob=-0.5)
    store.finish_attempts([replace(outcome, prompt_logprobs=logprobs, prompt_token_ids=[1, 5])])
    start = START.replace(minute=0, second=0, microsecond=0)
    hour = WorkerHour(start, 60.0, 20.0, 1.0, 30.0, 5.0, 5.0, 7.0, 8.0, 9.0, 500, 3)
    store.heartbeat_worker("w-running", WorkerCounters(3, 2, 400, 50, 160, 7, 4), timedelta(seconds=0.5), (hour,))


def run_batch(database: Engine, store: JobStore, epoch: int) -> None:
    """Run a batch of a file with a line at fault; one of its two jobs is still queued in the end."""
    batches = BatchStore(database, clock=lambda: after(100))
    made = batches.create(batch_of(BATCH, labels={"ü": "é"}, run_key="digest", window_seconds=86_400))
    batches.add_faults(BATCH, [LineFault(2, None, "is no JSON", "invalid_json", "body")])
    batches.validated(BATCH, Endpoint.CHAT, 3, 1)
    claims = [claim_of(job_id_of(BATCH, line), epoch, batch_id=BATCH, custom_id=f"c{line}") for line in (1, 3)]
    store.begin_attempts(claims, "w-running")
    batches.submitted(made.batch_id)
    store.finish_attempts([outcome_of(claims[0])])
    batches.status(BATCH)
    batches.latest(5, tenant="acme")


def run_schedule(database: Engine) -> None:
    """Fire a schedule twice: one run is submitted, one is still firing; the slots of a pause are skipped."""
    schedules, runs = ScheduleStore(database), RunStore(database)
    leadership = Leadership(database, "w-running")
    schedules.add(schedule_of(SCHEDULE))
    for minute in (1, 2):
        now = after(60 * minute)
        leadership.hold(now)
        (due,) = schedules.due(now)
        (opened,) = schedules.open_runs(due, plan(due, now), now, leadership)
        claimed = runs.claim(opened.id, "w-running", now)
        assert claimed is not None, "nobody else works on it"
        run, _ = claimed
        runs.settle(run, 1, None)
        if minute == 1:
            runs.end(run, RunState.SUBMITTED, now, num_submitted=1)
        else:
            runs.put_off(run, "Redis does not answer", now)
    schedules.pause(SCHEDULE, after(130))
    schedules.resume(SCHEDULE, after(600))


def fill_collection(database: Engine, store: JobStore, epoch: int) -> None:
    """Index two documents, of which one cannot be read; summarise the other."""
    columns = {"name": "library", "key": "k" * 32, "source_kind": "folder", "source": "/srv/library", "model": "m"}
    columns["source_options"] = '{"pattern": "*.md"}'
    split = {"tokenizer_hash": "t" * 64, "chunk_tokens": 384, "overlap_tokens": 48, "revision": 0}
    document = {"title": "Ä", "format": "md", "source_hash": "s" * 64, "content_hash": "c" * 64, "changed_at": START}
    sizes = {"num_characters": 5, "num_tokens": 2, "problem": None, "deleted_at": None}
    chunk = {"position": 0, "start": 0, "text": "Ä text", "num_tokens": 2, "overlap_characters": 0, "overlap_tokens": 0}
    with writing(database) as connection:
        times = {"created_at": START, "indexed_at": START}
        collection_id = collections.add_collection(connection, {**columns, **split, **times})
        ids = {"collection_id": collection_id, "source": "a.md"}
        document_id = collections.write_document(connection, None, {**ids, **document, **sizes})
        collections.replace_chunks(connection, document_id, [chunk])
        unreadable = {"source": "b.pdf", "format": "pdf", "content_hash": None, "problem": "is encrypted"}
        collections.write_document(connection, None, {**ids, **document, **sizes, **unreadable})
        collections.raise_revision(connection, collection_id)
    summarise(database, store, epoch, collection_id, document_id)


def summarise(database: Engine, store: JobStore, epoch: int, collection_id: int, document_id: int) -> None:
    """Make a summary of a document, and begin another of it by another prompt."""
    claim = claim_of("summary-job", epoch, batch_id="summaries")
    store.begin_attempts([claim], "w-running")
    store.finish_attempts([outcome_of(claim)])
    version = {"document_id": document_id, "content_hash": "c" * 64, "model_hash": "m" * 64, "model": "smollm2"}
    state = {"state": SummaryState.PENDING, "attempt_count": 1, "batch_id": "summaries", "num_jobs": 1}
    empty = dict.fromkeys(("text", "error_message", "finish_reason", "completion_tokens", "ended_at"))
    made = [
        NewSummary(
            {**version, **state, **empty, "created_at": START, "prompt": "{}", "prompt_hash": name, "job_id": job_id},
            ((job_id, 0, 0),),
        )
        for name, job_id in (("p1", "summary-job"), ("p2", "queued"))
    ]
    with writing(database) as connection:
        summaries.find_to_summarise(connection, collection_id, Version("p1", "m" * 64))
        summaries.add_summaries(connection, made)
    with writing(database) as connection:
        summaries.write_ends(connection, summaries.find_ends(connection), after(50))


def fill_outbox(database: Engine) -> None:
    """Write two rows as an app does, of which a relay takes the first."""
    rows = [
        {"job_id": f"outbox-{number}", "queue": "bulk", "payload": '{"prompt": "from an app"}', "created_at": START}
        for number in (1, 2)
    ]
    with writing(database) as connection:
        connection.execute(insert(OutboxRow), rows)
    with writing(database) as connection:
        outbox.take(connection, 1, after(30))
    with reading(database) as connection:
        outbox.count(connection)


def serve(database: Engine) -> None:
    """Make API keys, one of them revoked, and a file."""
    keys = ApiKeys(database, clock=lambda: after(5))
    keys.revoke(keys.add("acme", "old").key_id)
    keys.add("acme", None)
    kept = ApiFile("file-000000000000000000000001", "acme", "ü.jsonl", "batch", 17, START, expires_at=after(86_400))
    ApiFiles(database).add(kept)
