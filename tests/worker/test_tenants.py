"""Who shares whose prefix cache: a job that does not ask to share hits its own tenant's blocks and no others."""

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.worker.fakes import CONFIG, make_flow
from worker.client import submit
from worker.errors import InvalidJob
from worker.jobs import parse_job
from worker.store import JobStore

NUM_SHARED_BLOCKS = 4
SHARED = "the same beginning of every prompt. ".ljust(NUM_SHARED_BLOCKS * CONFIG.block_size, ".")
TENANTS = ("default", "acme", "rival")


def hits(connection: redis.Redis, store: JobStore, jobs: list[tuple[str, bool]]) -> list[int]:
    """Run jobs of (tenant, share_prefix) one after the other on one worker; return each one's prefix_hit_tokens."""
    ids = submit(
        connection,
        (
            {"prompt": f"{SHARED}{number}", "tenant": tenant, "share_prefix": shares, "max_tokens": 1}
            for number, (tenant, shares) in enumerate(jobs)
        ),
    )
    make_flow(connection, store, max_jobs=1).run(burst=True)
    found = []
    for job_id in ids:
        detail = store.job(job_id)
        assert detail is not None
        assert detail.stats is not None
        found.append(detail.stats.prefix_hit_tokens)
    return found


def test_tenants_hit_each_others_blocks_only_where_both_ask_to(connection: redis.Redis, sqlite_store: JobStore) -> None:
    whole = NUM_SHARED_BLOCKS * CONFIG.block_size
    jobs = {
        ("acme", False): 0,
        ("rival", False): 0,  # it must not see that acme was here
        ("default", False): 0,
        ("acme", True): 0,  # the common cache is another one than its own
        ("rival", True): whole,
        ("default", True): whole,
    }
    assert hits(connection, sqlite_store, [*jobs, *jobs]) == [*jobs.values(), *(whole for _ in jobs)]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs=st.lists(st.tuples(st.sampled_from(TENANTS), st.booleans()), min_size=1, max_size=8))
def test_a_hit_tells_of_the_same_salt_only(
    connection: redis.Redis, sqlite_store: JobStore, jobs: list[tuple[str, bool]]
) -> None:
    salts = ["common" if shares else f"of {tenant}" for tenant, shares in jobs]
    expected = [salt in salts[:place] for place, salt in enumerate(salts)]
    assert [bool(tokens) for tokens in hits(connection, sqlite_store, jobs)] == expected


@pytest.mark.parametrize("tenant", ["", " ", "a b", "\0", "x" * 129, "ä"])
def test_no_tenant_can_take_the_common_caches_name(tenant: str) -> None:
    with pytest.raises(InvalidJob, match="tenant: "):
        parse_job({"prompt": "x", "tenant": tenant})
