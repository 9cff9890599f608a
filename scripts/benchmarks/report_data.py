"""Made-up jobs for `scripts/bench reports`, in PostgreSQL: the server writes them itself, some millions a minute.

Ninety days with busy afternoons; three queues, eight tenants of very different sizes, two models; batches of more than
a thousand jobs; latencies that are log-normal; three jobs in a hundred with a second attempt, as many that fail. Texts
are short: no report reads them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

DAYS = 90
TABLES = ("batches", "jobs", "attempts", "results", "job_stats")
CHUNK = 1_000_000  # jobs a statement
BATCH = 2_000
PRICE = 2.5  # of an engine hour, in EUR

_NUMBERS = """
WITH numbers AS MATERIALIZED (
    SELECT n, md5(n::text)::uuid::text AS id,
        hashint8(n) & 1023 AS h, hashint8(n * 7 + 1) & 1023 AS g, hashint8(n * 13 + 5) & 1023 AS f,
        CAST(:end AS timestamptz) - interval '90 days' * (1 - n / CAST(:jobs AS double precision))
            + interval '3 hours' * sin(n / CAST(:jobs AS double precision) * 90 * 2 * pi()) AS at
    FROM generate_series(CAST(:first AS bigint), :last) AS n
), facts AS (
    SELECT n, id, f, at, at - interval '8 seconds' AS claimed_at,
        CASE WHEN h < 700 THEN 'bulk' WHEN h < 960 THEN 'default' ELSE 'urgent' END AS queue,
        'tenant-' || floor(8 * (g / 1024.0) ^ 2.5) AS tenant,
        CASE WHEN h % 4 = 0 THEN 'large' ELSE 'small' END AS model,
        CASE WHEN h < 700 THEN 'batch-' || n / :batch END AS batch_id,
        CASE WHEN f < 990 THEN 'done' WHEN f < 1012 THEN 'failed' WHEN f < 1018 THEN 'cancelled' ELSE 'dead' END
            AS state,
        CASE WHEN f % 33 = 0 THEN 2 ELSE 1 END AS attempts
    FROM numbers
)
"""

_BATCHES = """
INSERT INTO batches (id, size, created_at)
SELECT 'batch-' || n, :batch, CAST(:end AS timestamptz) FROM generate_series(0, :jobs / :batch) AS n
"""

_WORKERS = """
INSERT INTO workers (name, hostname, pid, model, device, dtype, block_size, num_blocks, bytes_per_block,
    pagemill_version, torch_version, transformers_version, started_at, last_heartbeat_at, jobs_done, jobs_failed,
    prompt_tokens, completion_tokens, prefix_hit_tokens, price_per_engine_hour, price_currency)
SELECT 'worker-' || n, 'host-' || n, n, 'small', 'cuda', 'bfloat16', 16, 65536, 1048576, '0', '0', '0',
    CAST(:end AS timestamptz) - interval '90 days', :end, 0, 0, 0, 0, 0, :price, 'EUR'
FROM generate_series(0, 3) AS n
"""

_INSERTS = {
    "jobs": """
INSERT INTO jobs (id, queue, tenant, model, batch_id, custom_id, payload, state, epoch, attempt_count, error_code,
    error_message, enqueued_at, started_at, ended_at, retry_count)
SELECT id, queue, tenant, model, batch_id, n::text, '{}', state, attempts, attempts,
    CASE WHEN state = 'failed' THEN (ARRAY['context_length', 'deadline_exceeded', 'numerical_error'])[1 + n % 3]
        WHEN state = 'dead' THEN 'crashes_workers' END,
    CASE WHEN state IN ('failed', 'dead') THEN 'it could not be done' END,
    at - interval '60 seconds', claimed_at, at, 0
FROM facts
""",
    "attempts": """
INSERT INTO attempts (id, job_id, epoch, worker_name, state, started_at, ended_at, engine_seconds,
    wasted_engine_seconds, kv_block_seconds_share, computed_tokens, recomputed_tokens)
SELECT CASE WHEN epoch = attempts THEN n ELSE :jobs + n END, id, epoch, 'worker-' || n % 4,
    CASE WHEN epoch < attempts THEN CASE WHEN n % 2 = 0 THEN 'requeued' ELSE 'lost' END
        WHEN state = 'dead' THEN 'lost' ELSE state END,
    claimed_at, at, 0.02 + random() * 0.05, CASE WHEN f % 50 = 1 THEN 0.01 ELSE 0 END, 20 + random() * 50, 400,
    CASE WHEN f % 50 = 1 THEN 100 ELSE 0 END
FROM facts, generate_series(1, attempts) AS epoch
""",
    "results": """
INSERT INTO results (job_id, attempt_id, text, token_ids, finish_reason, prompt_tokens, completion_tokens, created_at)
SELECT id, n, 'ok', '[1, 2]', 'stop', 200 + (random() * 1000)::bigint, 1 + (random() * 300)::bigint, at
FROM facts WHERE state = 'done'
""",
    "job_stats": """
INSERT INTO job_stats (job_id, queue_ms, tokenize_ms, ttft_ms, itl_mean_ms, itl_p99_ms, e2e_ms, kv_blocks_peak,
    kv_bytes_peak, kv_block_seconds, prefix_hit_tokens, preemptions, memory_peak_bytes, kv_blocks_limit,
    kv_block_seconds_limit)
SELECT id, exp(9 + z), 0.5 + random(), exp(5 + z / 2), exp(3 + z / 8), exp(3.5 + z / 4), exp(9.5 + z),
    20 + (random() * 80)::bigint, (20 + (random() * 80)::bigint) << 20, 100 + random() * 400,
    CASE WHEN f % 3 > 0 THEN 16 * (random() * 12)::bigint ELSE 0 END, CASE WHEN f % 50 = 1 THEN 1 ELSE 0 END,
    8589934592, 128, 600 + random() * 400
FROM (SELECT facts.*, sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()) AS z FROM facts WHERE state = 'done')
    AS facts
""",
}


def write_jobs(connection: Connection, jobs: int, end: str, told: Callable[[str], None]) -> None:
    """Write so many jobs that ended in the 90 days before `end` (an ISO time). Autocommits; the user is a superuser."""
    values = {"jobs": jobs, "end": end, "batch": BATCH, "price": PRICE}
    connection.execute(text("SET synchronous_commit = off"))
    connection.execute(text("SET maintenance_work_mem = '512MB'"))
    with without_indexes(connection, told):
        connection.execute(text(_BATCHES), {name: values[name] for name in ("jobs", "end", "batch")})
        connection.execute(text(_WORKERS), {name: values[name] for name in ("end", "price")})
        for first in range(1, jobs + 1, CHUNK):
            span = {"first": first, "last": min(first + CHUNK - 1, jobs)}
            for table, insert in _INSERTS.items():
                told(f"{table}: {span['last']:,} of {jobs:,} jobs")
                asked = {name: values[name] for name in ("jobs", "end", "batch")}
                connection.execute(text(_with_numbers(insert)), asked | span)
        connection.execute(
            text("SELECT setval(pg_get_serial_sequence('attempts', 'id'), 2 * CAST(:jobs AS bigint))"), {"jobs": jobs}
        )
    told("VACUUM ANALYZE")
    connection.execute(text("VACUUM ANALYZE"))


def _with_numbers(insert: str) -> str:
    head, select = insert.split("SELECT", 1)
    return f"{head}{_NUMBERS}SELECT{select}"


@contextmanager
def without_indexes(connection: Connection, told: Callable[[str], None]) -> Iterator[None]:
    """Take constraints and indexes away and make them again afterwards: faster by far than keeping them up to date."""
    constraints = connection.execute(
        text(
            "SELECT conname, conrelid::regclass::text AS place, pg_get_constraintdef(oid) AS definition "
            "FROM pg_constraint WHERE contype IN ('p', 'u', 'f') AND (conrelid::regclass::text = ANY(:tables) "
            "OR confrelid::regclass::text = ANY(:tables)) ORDER BY position(contype::text IN 'puf'), conname"
        ),
        {"tables": list(TABLES)},
    ).all()
    for row in reversed(constraints):
        connection.execute(text(f"ALTER TABLE {row.place} DROP CONSTRAINT {row.conname} CASCADE"))
    indexes = connection.execute(
        text("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename = ANY(:tables)"),
        {"tables": list(TABLES)},
    ).all()
    for row in indexes:
        connection.execute(text(f"DROP INDEX {row.indexname}"))
    yield
    for row in constraints:
        told(f"constraint {row.conname}")
        connection.execute(text(f"ALTER TABLE {row.place} ADD CONSTRAINT {row.conname} {row.definition}"))
    for row in indexes:
        told(f"index {row.indexname}")
        connection.execute(text(row.indexdef))
