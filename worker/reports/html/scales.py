"""Axes: round numbers from zero to the largest value, and moments that do not crowd."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from worker.reports.timeline import DAY, Timeline
from worker.reports.units import Unit, compact

MAX_TICKS = 5  # above zero
MAX_MOMENTS = 8
TIME_STEPS_S = (
    1,
    2,
    5,
    10,
    15,
    20,
    30,
    60,
    120,
    300,
    600,
    900,
    1_200,
    1_800,
    3_600,
    7_200,
    10_800,
    21_600,
    43_200,
    86_400,
)


@dataclass(frozen=True, slots=True)
class Scale:
    """From zero to `top`; `ticks` are (value, text), zero and `top` among them."""

    top: float
    ticks: tuple[tuple[float, str], ...]

    def share(self, value: float) -> float:
        """Return how far up a value is, from 0 to 1."""
        return min(max(value / self.top, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment's name under an axis; `is_minor` may go where there is little room."""

    at: float  # 0 to 1
    text: str
    is_minor: bool


def scale_for(values: Sequence[float | None], unit: Unit) -> Scale:
    """Return a scale that holds all values; of a share never above 1."""
    largest = max((value for value in values if value is not None), default=0.0)
    if largest <= 0:
        largest = 1.0
    step = _round_step(largest / MAX_TICKS, unit)
    count = max(1, math.ceil(largest / step - 1e-9))
    return Scale(top=step * count, ticks=tuple((step * at, compact(step * at, unit)) for at in range(count + 1)))


def moments_for(timeline: Timeline) -> tuple[Tick, ...]:
    """Return names for some of the steps: at most eight, at even distances, a day's name where a day begins."""
    stride = next(stride for stride in _strides(timeline) if timeline.count / stride <= MAX_MOMENTS)
    moments = timeline.moments()
    first = next(at for at, moment in enumerate(moments) if _is_round(moment, timeline, stride) or at == stride)
    first = 0 if timeline.count <= stride else first
    chosen = range(first, timeline.count, stride)
    ticks, previous = [], None
    for number, at in enumerate(chosen):
        moment = moments[at]
        is_new_day = previous is None or previous.date() != moment.date()
        text = moment.strftime("%b %-d") if timeline.step_s >= DAY or (is_new_day and _is_midnight(moment)) else None
        text = text or moment.strftime("%b %-d, %H:%M" if is_new_day else "%H:%M")
        ticks.append(Tick(at=(at + 0.5) / timeline.count, text=text, is_minor=number % 2 == 1))
        previous = moment
    return tuple(ticks)


def _round_step(least: float, unit: Unit) -> float:
    if unit is Unit.BYTES:
        return float(2 ** math.ceil(math.log2(least)))
    if unit in (Unit.MILLISECONDS, Unit.SECONDS):
        second = 1000.0 if unit is Unit.MILLISECONDS else 1.0
        if second < least <= TIME_STEPS_S[-1] * second:
            return second * next(step for step in TIME_STEPS_S if step * second >= least)
        if least > TIME_STEPS_S[-1] * second:
            return 86_400 * second * _decimal_step(least / (86_400 * second))
    step = _decimal_step(least)
    return max(1.0, step) if unit is Unit.COUNT else step


def _decimal_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= least * (1 - 1e-9))


def _strides(timeline: Timeline) -> list[int]:
    """Numbers of steps that are a round length of time, the shortest first."""
    lengths = (
        60,
        120,
        300,
        600,
        900,
        1_800,
        3_600,
        7_200,
        10_800,
        21_600,
        43_200,
        *(DAY * days for days in (1, 2, 5, 7, 14, 28)),
    )
    round_ones = [length // timeline.step_s for length in lengths if length % timeline.step_s == 0]
    return [*round_ones, *range(1, timeline.count + 1)]


def _is_round(moment: datetime, timeline: Timeline, stride: int) -> bool:
    return int(moment.timestamp()) % (timeline.step_s * stride) == 0


def _is_midnight(moment: datetime) -> bool:
    return moment.hour == moment.minute == 0
