"""The table: 19 faults, the right outcome of each, and the function that brings the fault about."""

from scripts.fault_table import crash_rows
from scripts.fault_table.rows import Row

ROWS = (
    Row(
        1,
        "SIGKILL mid-batch",
        "0 lost; orphans run again within 45 s, within 5 s on the same host",
        crash_rows.kill_mid_batch,
    ),
    Row(
        2,
        "crash between claim and acknowledgement",
        "after the commit: acknowledged only, no second generation",
        crash_rows.crash_between,
    ),
    Row(
        12,
        "a prompt that kills the process",
        "only the culprit is dead-lettered, after at most 3 crashes",
        crash_rows.poison_prompt,
    ),
    Row(17, "SIGTERM, twice", "drained, exit 0 within 35 s; handed back within 2 s", crash_rows.stop_in_order),
    Row(19, "worker cut off for longer than its lease", "the fence rejects its stale writes", crash_rows.cut_off),
)
