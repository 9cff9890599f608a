"""Units of figures: which one a figure has, as its name tells, and how a person reads it."""

from datetime import UTC, datetime
from enum import Enum

from worker.readable import format_bytes, format_digits, format_span


class Unit(Enum):
    """What a figure counts or measures. The value is its name in machine formats."""

    TEXT = "text"
    COUNT = "count"
    MILLISECONDS = "ms"
    SECONDS = "s"
    BYTES = "bytes"
    BLOCK_SECONDS = "block-seconds"
    SHARE = "share"  # 0 to 1
    CHANGE = "change"  # a difference in parts of what it was
    RATE = "1/s"
    MONEY = "money"  # in the currency that the table's notes name
    MOMENT = "UTC"
    BY_METRIC = "by metric"  # the row's metric tells, by its own name


SUFFIXES = {  # the first that fits decides
    "_per_s": Unit.RATE,
    "block_seconds": Unit.BLOCK_SECONDS,
    "block_seconds_limit": Unit.BLOCK_SECONDS,
    "block_seconds_share": Unit.BLOCK_SECONDS,
    "_ms": Unit.MILLISECONDS,
    "_seconds": Unit.SECONDS,
    "_s": Unit.SECONDS,
    "_bytes": Unit.BYTES,
    "kv_bytes_peak": Unit.BYTES,
    "change": Unit.CHANGE,
    "_share": Unit.SHARE,
    "_rate": Unit.SHARE,
    "_at": Unit.MOMENT,
    "cost": Unit.MONEY,
}


def _readable_rate(per_second: float) -> str:
    """Return a rate over the time in which something happens."""
    for seconds, name in ((1, "s"), (60, "min"), (3600, "h")):
        if abs(per_second) * seconds >= 1:
            return f"{format_digits(per_second * seconds)}/{name}"
    return f"{format_digits(per_second * 86_400)}/d"


def unit_of(name: str) -> Unit:
    """Return the unit that a figure's name tells: `ttft_ms`, `kv_bytes_peak`, `hit_rate`; a count without one."""
    return next((unit for suffix, unit in SUFFIXES.items() if name.endswith(suffix)), Unit.COUNT)


def readable(value: object, unit: Unit) -> str:
    """Return a value as a person reads it: "1,234", "350 ms", "2 h 5 min", "1.5 GiB", "82.5%"; "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _readable_number(float(value), unit)
    return str(value)


def compact(value: float, unit: Unit) -> str:
    """Return a number in few characters, for an axis or a tile: "1.2M", "350 ms", "1.5 GiB"."""
    if unit in (Unit.COUNT, Unit.RATE, Unit.BLOCK_SECONDS, Unit.MONEY):
        for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
            if abs(value) >= size:
                return f"{format_digits(value / (1e3 if letter == 'k' else size))}{letter}"
        return format_digits(value)
    return _readable_number(value, unit)


def _readable_number(value: float, unit: Unit) -> str:
    match unit:
        case Unit.MILLISECONDS:
            return format_span(value / 1000)
        case Unit.SECONDS:
            return format_span(value)
        case Unit.BYTES:
            return format_bytes(value)
        case Unit.SHARE:
            return f"{format_digits(value * 100)}%"
        case Unit.CHANGE:
            return f"{value:+.1%}"
        case Unit.RATE:
            return _readable_rate(value)
        case Unit.MONEY:
            return f"{value:,.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"
        case _:
            return format_digits(value)
