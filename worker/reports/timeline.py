"""A report's time in even steps: how wide a step is, where each begins, what to call it. All in UTC."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from worker.readable import format_span

MINUTE, HOUR, DAY = 60, 3_600, 86_400
STEPS = (*(minutes * MINUTE for minutes in (1, 5, 15, 30)), HOUR, 3 * HOUR, DAY, 7 * DAY)
MONTH = 28 * DAY  # of whole weeks, so that no two months differ in length
MIN_STEPS, MAX_STEPS = 12, 60


@dataclass(frozen=True, slots=True)
class Timeline:
    """`count` steps of `step_s` seconds, the first from `start`, which is a multiple of the step since 1970."""

    start: datetime
    step_s: int
    count: int

    def moments(self) -> list[datetime]:
        """Return the beginning of each step."""
        return [self.start + timedelta(seconds=self.step_s * at) for at in range(self.count)]

    def spread(self, values: Mapping[datetime, float | None]) -> tuple[float | None, ...]:
        """Return a value for each step, None for those that `values` does not name."""
        return tuple(values.get(moment) for moment in self.moments())

    def label(self, moment: datetime) -> str:
        """Return a step's beginning in full: "Nov 29, 14:00", or the day where a step is days long."""
        return moment.strftime("%b %-d, %H:%M" if self.step_s < DAY else "%b %-d, %Y")

    @property
    def step(self) -> str:
        """How long a step is, in words."""
        return step_words(self.step_s)


def step_words(seconds: int) -> str:
    """Return a length of time in words that follow "per": "hour", "15 min"."""
    names = {MINUTE: "minute", HOUR: "hour", DAY: "day", 7 * DAY: "week"}
    return names.get(seconds) or format_span(seconds)


def timeline_over(first: datetime, last: datetime, finest_s: int = MINUTE) -> Timeline:
    """Return the finest steps of which at most 60 hold both moments, and some before them where these are few.

    `finest_s` is the shortest step that the figures know, one of STEPS.

    What is older than a week is in steps of days: such figures are rolled up by the hour and quick to sum.
    """
    step = next((step for step in STEPS if step >= finest_s and _count(first, last, step) <= MAX_STEPS), MONTH)
    while _count(first, last, step) > MAX_STEPS:
        step += MONTH
    count = _count(first, last, step)
    padding = max(0, MIN_STEPS - count)
    return Timeline(_floor(first, step) - timedelta(seconds=step * padding), step, count + padding)


def _count(first: datetime, last: datetime, step_s: int) -> int:
    return int((_floor(last, step_s) - _floor(first, step_s)).total_seconds()) // step_s + 1


def _floor(moment: datetime, step_s: int) -> datetime:
    return datetime.fromtimestamp(int(moment.timestamp()) // step_s * step_s, UTC)
