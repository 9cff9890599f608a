"""Fixtures of the tests of reconciling."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from worker.client import enqueue, prepare
from worker.reconciling import Finding, RealRepairs, Reconciler, Repairs
from worker.sql.recording import opened_recorder
from worker.sql.store import JobStore


@pytest.fixture
def submit(connection: redis.Redis, sqlite_file: Path) -> Callable[..., list[str]]:
    """Submit recorded jobs; return their ids."""

    def submit(*prompts: Any, queue: str = "default") -> list[str]:
        with opened_recorder(f"sqlite:///{sqlite_file}") as recorder:
            chunks = enqueue(connection, prepare(prompts), queue=queue, recorder=recorder)
            return [job_id for chunk in chunks for job_id in chunk]

    return submit


@pytest.fixture
def reconcile(connection: redis.Redis, sqlite_store: JobStore) -> Callable[..., dict[Finding, int]]:
    """Reconcile once; return the findings that are not zero."""

    def reconcile(repairs: Repairs | None = None) -> dict[Finding, int]:
        repairs = repairs or RealRepairs(sqlite_store, connection, 60)
        findings = Reconciler(sqlite_store, connection, repairs).run(lambda seen, total: None, lambda: False)
        return {finding: number for finding, number in findings.items() if number}

    return reconcile
