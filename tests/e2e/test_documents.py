"""The standard library's documentation, summarised by the real model; then three documents change."""

import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest

from tests.e2e.machine import Machine

pytestmark = pytest.mark.model

LONGEST_CHARACTERS = 500  # of a topic that fits the test's context many times over
NUM_TOPICS = 9
SUMMARIZE = ("rag", "summarize", "topics", "--max-tokens", "8")


def write_topics(folder: Path) -> list[str]:
    """Write short topics as files; return their names."""
    folder.mkdir()
    short = sorted(name for name, text in topics.items() if len(text) <= LONGEST_CHARACTERS)[:NUM_TOPICS]
    for name in short:
        (folder / f"{name}.txt").write_text(topics[name])
    return [f"{name}.txt" for name in short]


def exported(machine: Machine) -> list[dict[str, Any]]:
    """Return the summaries as they are exported."""
    return [json.loads(line) for line in machine.read("rag", "export", "topics", "--format", "jsonl").splitlines()]


def test_only_documents_that_changed_are_summarised_again(embedded_machine: Machine) -> None:
    machine, folder = embedded_machine, embedded_machine.folder / "topics"
    names = write_topics(folder)
    index = ("rag", "index", str(folder), "--collection", "topics")
    with machine.worker():
        assert machine.read_json(*index)["documents"]["added"] == len(names)
        first = machine.read_json(*SUMMARIZE, "--wait")
        assert (first["submitted"], first["done"], first["failed"]) == (len(names), len(names), 0)
        before = {document["source"]: document for document in exported(machine)}
        assert set(before) == set(names)

        changed = [names[1], names[4], names[8]]
        for name in changed:
            (folder / name).write_text(f"{(folder / name).read_text()}\nOne sentence more.\n")
        found = machine.read_json(*index)["documents"]
        assert (found["changed"], found["unchanged"]) == (3, len(names) - 3)
        planned = machine.read_json(*SUMMARIZE, "--dry-run")
        assert sorted(document["source"] for document in planned["new"]) == changed
        second = machine.read_json(*SUMMARIZE, "--wait")
        assert (second["submitted"], second["unchanged"], second["jobs"]) == (3, len(names) - 3, 3)
    after = {document["source"]: document for document in exported(machine)}
    assert sorted(name for name in names if after[name]["job_id"] != before[name]["job_id"]) == changed
    assert all(document["current"] for document in after.values())
    assert machine.read_json("report", "--batch", second["batch"])["jobs_by_state"]["done"] == 3
