"""The fault table in its quick form, as `scripts/faults --quick` runs it: one process, a test a row."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.fault_table.table import ROWS
from tests.services import missing_service

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent.parent


def is_wrong(result: dict[str, Any]) -> bool:
    """Tell whether a row makes the command fail."""
    return not result["is_right"] and (result["missing"] is None or os.environ.get("CI") == "true")


@pytest.fixture(scope="module")
def results() -> dict[int, dict[str, Any]]:
    """What came out of each row, by its number."""
    command = [sys.executable, "-m", "scripts.fault_table.main", "--quick", "--seeds", "1", "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == int(any(is_wrong(result) for result in found))
    return {result["number"]: result for result in found}


def test_table_has_all_rows() -> None:
    assert [row.number for row in ROWS] == list(range(1, 20))


@pytest.mark.parametrize("number", [row.number for row in ROWS], ids=[f"{row.number}-{row.fault}" for row in ROWS])
def test_nothing_is_lost(results: dict[int, dict[str, Any]], number: int) -> None:
    result = results[number]
    if result["missing"]:
        missing_service(result["missing"])
    assert result["problems"] == []
    assert result["tally"]["accepted"] > 0
    assert result["tally"]["lost"] == result["tally"]["doubled"] == 0
