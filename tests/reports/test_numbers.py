"""Units, numbers for people, steps of time, axes and sparklines."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.readable import format_digits, format_span
from worker.reports.html.scales import moments_for, scale_for
from worker.reports.sparklines import sparkline
from worker.reports.timeline import MAX_STEPS, MIN_STEPS, timeline_over
from worker.reports.units import Unit, compact, readable, unit_of

MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("ttft_ms", Unit.MILLISECONDS),
        ("span_s", Unit.SECONDS),
        ("engine_seconds", Unit.SECONDS),
        ("kv_block_seconds", Unit.BLOCK_SECONDS),
        ("kv_bytes_peak", Unit.BYTES),
        ("memory_peak_bytes", Unit.BYTES),
        ("hit_rate", Unit.SHARE),
        ("prefix_hit_share", Unit.SHARE),
        ("jobs_done_per_s", Unit.RATE),
        ("first_claim_at", Unit.MOMENT),
        ("cost", Unit.MONEY),
        ("prompt_tokens", Unit.COUNT),
    ],
)
def test_names_tell_their_units(name: str, unit: Unit) -> None:
    assert unit_of(name) is unit


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, Unit.COUNT, "-"),
        (1_234_567, Unit.COUNT, "1,234,567"),
        (0.8254, Unit.SHARE, "82.5%"),
        (1536, Unit.BYTES, "1.5 KiB"),
        (251.3, Unit.MILLISECONDS, "251 ms"),
        (91_251, Unit.MILLISECONDS, "1 min 31 s"),
        (0.0123, Unit.MONEY, "0.0123"),
        (1234.5, Unit.MONEY, "1,234.50"),
        (datetime(2026, 5, 1, 8, 30, tzinfo=UTC), Unit.MOMENT, "2026-05-01 08:30:00"),
        ("acme", Unit.TEXT, "acme"),
    ],
)
def test_values_as_people_read_them(value: object, unit: Unit, text: str) -> None:
    assert readable(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.00042, "0.42 ms"),
        (0.9999, "1 s"),
        (12.54, "12.5 s"),
        (59.99, "1 min"),
        (200, "3 min 20 s"),
        (3599.9, "1 h"),
        (7500, "2 h 5 min"),
        (86_400 * 3 + 3600, "3 d 1 h"),
        (-200, "-3 min 20 s"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.012345, "0.0123"), (9.999, "10"), (12.0, "12"), (1234.6, "1,235"), (-0.5, "-0.5")]
)
def test_digits(value: float, text: str) -> None:
    assert format_digits(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (999, Unit.COUNT, "999"),
        (12_500, Unit.COUNT, "12.5k"),
        (2_500_000, Unit.COUNT, "2.5M"),
        (0.5, Unit.SHARE, "50%"),
    ],
)
def test_compact_numbers(value: float, unit: Unit, text: str) -> None:
    assert compact(value, unit) == text


@given(MOMENTS, MOMENTS)
def test_a_timeline_holds_both_moments_in_few_steps(one: datetime, other: datetime) -> None:
    first, last = min(one, other), max(one, other)
    timeline = timeline_over(first, last)
    step = timedelta(seconds=timeline.step_s)
    moments = timeline.moments()
    assert MIN_STEPS <= timeline.count <= MAX_STEPS
    assert moments[0] <= first
    assert first < moments[0] + step or timeline.count == MIN_STEPS
    assert moments[-1] <= last < moments[-1] + step
    assert all(int(moment.timestamp()) % timeline.step_s == 0 for moment in moments)
    ticks = moments_for(timeline)
    assert 1 <= len(ticks) <= 8
    assert all(0 < tick.at < 1 for tick in ticks)


def test_the_names_under_an_axis() -> None:
    night = timeline_over(datetime(2026, 11, 28, 21, 5, tzinfo=UTC), datetime(2026, 11, 29, 6, 0, tzinfo=UTC))
    assert [tick.text for tick in moments_for(night)] == ["Nov 28, 22:00", "Nov 29", "02:00", "04:00", "06:00"]
    month = timeline_over(datetime(2026, 10, 30, tzinfo=UTC), datetime(2026, 11, 29, tzinfo=UTC))
    assert [tick.text for tick in moments_for(month)] == ["Nov 3", "Nov 8", "Nov 13", "Nov 18", "Nov 23", "Nov 28"]


@given(
    st.lists(st.none() | st.floats(0, 1e15, allow_subnormal=False), max_size=5),
    st.sampled_from([Unit.COUNT, Unit.BYTES, Unit.MILLISECONDS, Unit.SECONDS, Unit.SHARE, Unit.MONEY]),
)
def test_a_scale_holds_its_values_with_few_ticks(values: list[float | None], unit: Unit) -> None:
    scale = scale_for(values, unit)
    known = [value for value in values if value is not None]
    assert 2 <= len(scale.ticks) <= 7
    assert scale.ticks[-1][0] == scale.top
    assert max(known, default=0) <= scale.top * (1 + 1e-9)
    assert len({text for _, text in scale.ticks}) == len(scale.ticks)


def test_sparklines() -> None:
    assert sparkline([0, 1, None, 2, 7], "utf-8") == "▁▂·▃█"
    assert sparkline([0, 1, None, 7], "ascii") == "_-.#"
    assert sparkline([None, 0.0], "utf-8") == "·▁"
    assert sparkline([], "utf-8") == ""
