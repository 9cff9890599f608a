"""The table: 19 faults, the right outcome of each, and the function that brings the fault about."""

from scripts.fault_table import clock_rows, crash_rows, database_rows, engine_rows, queue_rows
from scripts.fault_table.rows import Row

ROWS = (
    Row(
        1,
        "SIGKILL mid-batch",
        "0 lost; orphans run again within 45 s, within 5 s on the same host",
        crash_rows.kill_mid_batch,
        is_timed=True,
    ),
    Row(
        2,
        "crash between claim and acknowledgement",
        "after the commit: acknowledged only, no second generation",
        crash_rows.crash_between,
    ),
    Row(3, "Redis killed, AOF everysec", "at most its last second lost there, 0 lost overall", queue_rows.kill_redis),
    Row(4, "Redis wiped", "rebuilt from SQL; results in flight persist", queue_rows.wipe_redis),
    Row(5, "Redis full, noeviction", "exit 75 for the producer; the worker drains to zero", queue_rows.fill_redis),
    Row(6, "fail-over that loses the last writes", "back within 10 s; losses reconciled", queue_rows.fail_over),
    Row(7, "PostgreSQL down", "claims stop, results wait, acknowledged after the commit", database_rows.cut_postgresql),
    Row(8, "SQLite locked", "the engine steps on, 0 lost", database_rows.lock_sqlite),
    Row(9, "disk full", "claims stop, nothing acknowledged, resumes by itself", database_rows.fill_disk),
    Row(10, "three deliveries, lost replies", "one job, one row, one attempt", queue_rows.deliver_thrice),
    Row(
        11,
        "clocks an hour off, and moving",
        "monotonic latencies, leases and schedules on Redis's clock",
        clock_rows.move_clock,
    ),
    Row(
        12,
        "a prompt that kills the process",
        "only the culprit is dead-lettered, after at most 3 crashes",
        crash_rows.poison_prompt,
    ),
    Row(13, "1,000 spoilt records", "dead-lettered raw; the worker never exits", queue_rows.spoil_records),
    Row(14, "out of memory", "only what can never fit fails", engine_rows.run_out_of_memory),
    Row(15, "step exception, once and always", "restarted; no job's retries spent", engine_rows.raise_in_step),
    Row(16, "NaN in one row", "that job only; the others' outputs identical", engine_rows.compute_nan),
    Row(
        17,
        "SIGTERM, twice",
        "exit 0 within 35 s; handed back within 2 s",
        crash_rows.stop_in_order,
        is_timed=True,
    ),
    Row(18, "two workers, 10,000 jobs", "none twice, no slot of a schedule either", queue_rows.share_a_queue),
    Row(19, "worker cut off for longer than its lease", "the fence rejects its stale writes", crash_rows.cut_off),
)
