"""Reports as Parquet, through pyarrow, which only some installations have."""

import io
from typing import Any

from worker.extras import import_extra
from worker.reports.tables import Column, ReportTable
from worker.reports.units import Unit


def to_parquet(table: ReportTable) -> bytes:
    """Return the table as a Parquet file. Each column's metadata names its unit.

    Raises ConfigurationError where pyarrow is not installed.
    """
    arrow = import_extra("pyarrow", "the Parquet format", extra="parquet")
    parquet = import_extra("pyarrow.parquet", "the Parquet format", extra="parquet")
    fields = [
        arrow.field(column.name, _type_of(arrow, column), metadata={"unit": column.unit.value})
        for column in table.columns
    ]
    arrays = [arrow.array(table.column(field.name), field.type) for field in fields]
    file = io.BytesIO()
    parquet.write_table(arrow.Table.from_arrays(arrays, schema=arrow.schema(fields)), file)
    return file.getvalue()


def _type_of(arrow: Any, column: Column) -> Any:
    match column.unit:
        case Unit.TEXT:
            return arrow.string()
        case Unit.MOMENT:
            return arrow.timestamp("us", tz="UTC")
        case Unit.COUNT | Unit.BYTES if column.is_whole:
            return arrow.int64()
        case _:
            return arrow.float64()
