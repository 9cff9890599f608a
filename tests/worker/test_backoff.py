"""Back-off: its bounds, and RQ's intervals as RQ itself counts them."""

from hypothesis import given
from hypothesis import strategies as st
from rq.job import Job

from worker.backoff import Backoff, RetryPolicy

Positive = st.floats(min_value=0.001, max_value=3600.0)


@given(base=Positive, factor=st.floats(1.0, 1000.0), count=st.integers(0, 10_000), draw=st.floats(0.0, 1.0))
def test_delay_is_a_part_of_what_has_doubled_up_to_the_cap(base: float, factor: float, count: int, draw: float) -> None:
    cap = base * factor
    seconds = Backoff(base, cap, lambda: draw).seconds(RetryPolicy(), count)
    assert seconds == draw * min(cap, base * 2.0 ** min(count, 64))


def test_jitter_is_full() -> None:
    backoff = Backoff(1.0, 300.0)
    delays = [backoff.seconds(RetryPolicy(), 3) for _ in range(1000)]
    assert 0.0 <= min(delays) < 1.0
    assert 7.0 < max(delays) <= 8.0


@given(intervals=st.lists(st.integers(0, 100), min_size=1, max_size=6), max_retries=st.integers(1, 10), data=st.data())
def test_rqs_intervals_are_taken_in_rqs_order(intervals: list[int], max_retries: int, data: st.DataObject) -> None:
    retry_count = data.draw(st.integers(0, max_retries - 1))
    rqs = Job.__new__(Job)
    rqs.retry_intervals, rqs.retries_left = intervals, max_retries - retry_count
    policy = RetryPolicy(max_retries, tuple(intervals))
    assert policy.allows(retry_count)
    assert not policy.allows(max_retries)
    assert Backoff(1.0, 1.0).seconds(policy, retry_count) == rqs.get_retry_interval()
