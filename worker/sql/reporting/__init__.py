"""The reports' queries, the same on SQLite and PostgreSQL, over the rows of jobs and the roll-ups made of them."""

from worker.sql.reporting.filters import Bucket, Dimension, Grouping, ReportFilter
from worker.sql.reporting.reports import Reports
from worker.sql.reporting.rows import (
    CostsRow,
    FailureRow,
    LatencyRow,
    MemoryRow,
    PrefixRow,
    SavingsRow,
    ScheduleRun,
    SlowJob,
    SummaryReport,
    ThroughputRow,
    TotalsRow,
    WasteRow,
    WorkerTimeRow,
)
from worker.sql.rollups.measures import LATENCIES, MEMORY

__all__ = [
    "LATENCIES",
    "MEMORY",
    "Bucket",
    "CostsRow",
    "Dimension",
    "FailureRow",
    "Grouping",
    "LatencyRow",
    "MemoryRow",
    "PrefixRow",
    "ReportFilter",
    "Reports",
    "SavingsRow",
    "ScheduleRun",
    "SlowJob",
    "SummaryReport",
    "ThroughputRow",
    "TotalsRow",
    "WasteRow",
    "WorkerTimeRow",
]
