"""The SQL tables, the same on SQLite and PostgreSQL. `migrations/` creates them; a test holds the two together.

One module per topic; all of them are imported here, so that `Base.metadata` is complete for whoever has it from here.
"""

from worker.sql.tables.base import Base, StorableText, UtcDateTime, storable, utc_now
from worker.sql.tables.batch_files import BatchFaultRow, BatchFileRow
from worker.sql.tables.documents import (
    ChunkRow,
    CollectionRow,
    DocumentRow,
    SummaryJobRow,
    SummaryRow,
    SummaryState,
)
from worker.sql.tables.jobs import (
    UNFINISHED,
    UNFINISHED_INDEX,
    AttemptRow,
    BatchRow,
    ChoiceRow,
    JobRow,
    JobStatsRow,
    ResultRow,
    WorkerRow,
)
from worker.sql.tables.ledger import WorkerHourRow
from worker.sql.tables.outbox import OutboxRow
from worker.sql.tables.rollups import (
    EarlierHistogramRow,
    HistogramRow,
    HourlyBatchCostsRow,
    HourlyBatchFailuresRow,
    HourlyBatchFigureRow,
    HourlyBatchTotalsRow,
    HourlyBatchWasteRow,
    HourlyCostsRow,
    HourlyFailuresRow,
    HourlyFigureRow,
    HourlyTotalsRow,
    HourlyWasteRow,
    RolledHourRow,
)
from worker.sql.tables.schedules import LeaderRow, ScheduleRow, ScheduleRunRow
from worker.sql.tables.serving import ApiFileRow, ApiKeyRow

__all__ = [
    "UNFINISHED",
    "UNFINISHED_INDEX",
    "ApiFileRow",
    "ApiKeyRow",
    "AttemptRow",
    "Base",
    "BatchFaultRow",
    "BatchFileRow",
    "BatchRow",
    "ChoiceRow",
    "ChunkRow",
    "CollectionRow",
    "DocumentRow",
    "EarlierHistogramRow",
    "HistogramRow",
    "HourlyBatchCostsRow",
    "HourlyBatchFailuresRow",
    "HourlyBatchFigureRow",
    "HourlyBatchTotalsRow",
    "HourlyBatchWasteRow",
    "HourlyCostsRow",
    "HourlyFailuresRow",
    "HourlyFigureRow",
    "HourlyTotalsRow",
    "HourlyWasteRow",
    "JobRow",
    "JobStatsRow",
    "LeaderRow",
    "OutboxRow",
    "ResultRow",
    "RolledHourRow",
    "ScheduleRow",
    "ScheduleRunRow",
    "StorableText",
    "SummaryJobRow",
    "SummaryRow",
    "SummaryState",
    "UtcDateTime",
    "WorkerHourRow",
    "WorkerRow",
    "storable",
    "utc_now",
]
