"""Which steps run by CUDA graphs, and what they are filled up to. `test_triton_engine.py` runs them."""

from itertools import pairwise

import pytest

from engine.cuda_graphs import BUCKETS, bucket_for
from engine.step_plan import ScheduledRequest
from tests.engine.fakes import make_request

DECODE = ScheduledRequest(make_request(), 0, 1)


@pytest.mark.parametrize(
    ("num_requests", "bucket"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (33, 40), (65, 80), (129, 160), (256, 256)]
)
def test_decodes_are_filled_up_to_the_next_bucket(num_requests: int, bucket: int) -> None:
    assert bucket_for([DECODE] * num_requests) == bucket


def test_buckets_ascend_and_waste_less_than_half() -> None:
    assert list(BUCKETS) == sorted(set(BUCKETS))
    assert all(after <= 2 * before for before, after in pairwise(BUCKETS))


@pytest.mark.parametrize(
    "other",
    [
        ScheduledRequest(make_request(), 0, 2),
        ScheduledRequest(make_request(), 0, 2, draft=(5,)),
        ScheduledRequest(make_request(prompt_logprobs=0), 0, 1),
    ],
    ids=["chunk", "draft", "prompt scored"],
)
def test_steps_that_do_more_than_decode_have_none(other: ScheduledRequest) -> None:
    assert bucket_for([DECODE, other, DECODE]) is None


def test_large_steps_have_none() -> None:
    assert bucket_for([DECODE] * (BUCKETS[-1] + 1)) is None
