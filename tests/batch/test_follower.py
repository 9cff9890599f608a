"""Finding what has ended: whatever the order, nothing is missed and nothing is written twice."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.batch.batches import BATCH, batch_of, begin, end
from worker.batch import follower as follower_module
from worker.batch.follower import ErrorsFile, Follower
from worker.batch.output_file import opened_output
from worker.batch.store import BatchStore
from worker.openai_api.fields import Endpoint
from worker.records import AttemptState


def test_jobs_that_end_far_from_the_others_are_found(
    database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "WINDOW_LINES", 2)
    batches = BatchStore(database)
    lines = range(1, 60)
    begin(batches, lines)
    batch = batch_of(output_name="out")
    with ExitStack() as opened:
        output = opened.enter_context(opened_output(tmp_path / "out.jsonl"))
        follower = Follower(batches, batch, output, ErrorsFile(tmp_path / "err.jsonl", BATCH, opened))
        for line in lines:
            follower.expect(line)
        assert not follower.poll(Endpoint.CHAT)
        for line in (50, 2, 59, 30):
            end(batches, line, AttemptState.FAILED if line == 30 else AttemptState.DONE)
        while follower.tally.ended < 4:
            follower.poll(Endpoint.CHAT)
        assert (follower.tally.completed, follower.tally.failed, follower.num_open) == (3, 1, 55)
        for line in set(lines) - {50, 2, 59, 30}:
            end(batches, line)
        while follower.num_open:
            follower.poll(Endpoint.CHAT)
        assert not follower.poll(Endpoint.CHAT)
    assert (tmp_path / "out.jsonl").read_bytes().count(b"\n") == 58
    assert (tmp_path / "err.jsonl").read_bytes().count(b"\n") == 1
