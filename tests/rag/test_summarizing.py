"""Summaries of a collection: what runs, in which order, what becomes of it, and what an interruption costs."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import Engine, select

from tests.rag.summaries import NAME, PROMPT, Library, summarise
from tests.sql.builders import worker_of
from tests.worker.fakes import ScriptError
from worker.cancelling import cancel_jobs
from worker.errors import ConfigurationError, PagemillError
from worker.queue.submission import QueueRecord
from worker.rag.capacity import within_workers
from worker.rag.collecting import collect_summaries
from worker.rag.model import RagModel
from worker.rag.prompts import SummaryPrompt
from worker.rag.summarizing import RunOptions, Summarizer
from worker.records import JobState
from worker.settings_model import Settings
from worker.sql.database import reading
from worker.sql.recording import opened_recorder
from worker.sql.store import JobStore
from worker.sql.tables import JobRow, SummaryState, utc_now


@pytest.fixture
def library(database: Engine, database_url: str, connection: redis.Redis, model: RagModel, documents: Path) -> Library:
    return Library(database, database_url, connection, model, documents)


def test_each_document_is_summarised_once_and_again_when_it_changes(library: Library) -> None:
    assert set(library.index().values()) == {"added"}
    run = library.submit()
    assert [planned.document.source for planned in run.new] == [
        "rivers.md",  # "The long book" comes first by its title
        "bees.txt",
        "clocks.txt",
        "maps.txt",
        "tides.txt",
    ]
    assert run.new[0].plan.num_jobs > 3
    library.work()
    assert library.texts()["bees.txt"] == summarise(
        "Summarise.\nDocument: bees\n\nAll about bees. They are old. People like bees.\n\n"
        "Write the summary of this document."
    )
    assert (library.texts()["rivers.md"] or "").startswith("The long book: joined ")
    assert all(record.state is SummaryState.DONE for record in library.records().values())

    before = library.texts()
    assert library.submit().num_jobs == 0

    (library.folder / "bees.txt").write_text("Bees are different now.")
    (library.folder / "new.txt").write_text("Something new.")
    (library.folder / "maps.txt").unlink()
    os.utime(library.folder / "tides.txt", (0, 0))
    found = library.index()
    assert found == {
        "bees.txt": "changed",
        "clocks.txt": "unchanged",
        "maps.txt": "deleted",
        "new.txt": "added",
        "rivers.md": "unchanged",
        "tides.txt": "unchanged",
    }
    run = library.submit()
    assert [planned.document.source for planned in run.new] == ["bees.txt", "new.txt"]
    assert run.num_unchanged == 3
    library.work()
    after = library.texts()
    assert after["bees.txt"] != before["bees.txt"]
    assert {source: after[source] for source in ("clocks.txt", "rivers.md", "tides.txt", "maps.txt")} == {
        source: before[source] for source in ("clocks.txt", "rivers.md", "tides.txt", "maps.txt")
    }
    assert library.records()["maps.txt"].deleted_at is not None


def test_another_prompt_or_model_runs_everything_again(library: Library, model: RagModel) -> None:
    library.index()
    library.submit()
    library.work()
    other = SummaryPrompt("Summarise in one word.", max_tokens=PROMPT.max_tokens)
    assert len(library.submit(other).new) == 5
    library.work()
    assert len(library.submit(other).new) == 0
    assert len(library.submit().new) == 0  # the first one's summaries are still there
    library.model = RagModel(model.name, "other weights", model.tokenizer_hash, model.max_model_len, model.counter)
    assert len(library.submit().new) == 5


def test_parts_are_joined_level_by_level(library: Library) -> None:
    """With a context that holds two summaries only, a long document takes several levels."""
    library.options = RunOptions(context_tokens=360)
    library.index()
    library.submit()
    library.work()
    record = library.records()["rivers.md"]
    assert record.state is SummaryState.DONE
    with reading(library.database) as connection:
        payloads = connection.scalars(select(JobRow.payload).where(JobRow.custom_id.like("rivers.md%"))).all()
    assert len(payloads) == record.num_jobs
    assert sum('"inputs"' in payload for payload in payloads) > 2
    begun = [prompt for prompt in library.runner.order if "The long book" in prompt]
    assert not any("{output:" in prompt for prompt in begun)
    joined = [place for place, prompt in enumerate(begun) if "Summaries of its parts" in prompt]
    assert joined[-1] == len(begun) - 1


def test_killed_submission_is_completed_by_the_next_run(library: Library) -> None:
    """The recorder fails after the summaries are written: as if the command had been killed there."""
    library.index()

    class Killed(Exception):
        pass

    class KilledRecorder:
        def record(self, queue: str, records: Sequence[QueueRecord]) -> None:
            raise Killed

    summarizer = Summarizer(library.database, library.connection, KilledRecorder(), library.model)
    with pytest.raises(Killed):
        list(summarizer.submit(summarizer.plan(NAME, PROMPT, RunOptions()), PROMPT, RunOptions()))
    run = library.submit()
    assert (len(run.new), len(run.pending)) == (0, 5)
    library.work()
    assert all(record.state is SummaryState.DONE for record in library.records().values())
    assert set(library.runner.generations.values()) == {1}


def test_run_beside_a_run_submits_nothing_twice(library: Library) -> None:
    library.index()
    first = library.submit()
    second = library.submit()
    assert (len(second.new), len(second.pending)) == (0, 5)
    library.work()
    with reading(library.database) as connection:
        assert len(connection.scalars(select(JobRow.id)).all()) == first.num_jobs
    assert set(library.runner.generations.values()) == {1}


def test_failed_part_fails_its_document_alone_and_runs_again(library: Library) -> None:
    library.index()

    def fail_at_a_part(prompt: str) -> str:
        if "Part 2 of" in prompt:
            raise ScriptError
        return summarise(prompt)

    library.runner.reply = fail_at_a_part
    library.submit()
    library.work()
    states = {source: record.state for source, record in library.records().items()}
    assert states.pop("rivers.md") is SummaryState.FAILED
    assert set(states.values()) == {SummaryState.DONE}
    error = library.records()["rivers.md"].error_message or ""
    assert re.match(
        r"(input_failed: inputs: the job [0-9a-f]{32} is failed: )+step_failed: the model failed on it", error
    )

    library.runner.reply = summarise
    run = library.submit()
    assert [planned.document.source for planned in run.to_run] == ["rivers.md"]
    library.work()
    record = library.records()["rivers.md"]
    assert (record.state, record.attempt_count, record.error_message) == (SummaryState.DONE, 2, None)


def test_empty_output_is_no_summary(library: Library) -> None:
    """The summary of the text before stays in its place, and says so."""
    library.index()
    library.submit()
    library.work()
    (library.folder / "bees.txt").write_text("Silence.")
    library.index()
    library.runner.reply = lambda prompt: " " if "Silence" in prompt else summarise(prompt)
    library.submit()
    library.work()
    record = library.records()["bees.txt"]
    assert record.state is SummaryState.DONE
    assert not record.is_current
    assert [planned.document.source for planned in library.submit().failed] == ["bees.txt"]
    library.runner.reply = summarise
    library.work()
    assert library.records()["bees.txt"].is_current
    assert library.records()["bees.txt"].attempt_count == 2


def test_cancelled_part_fails_its_document(library: Library) -> None:
    """RQ never releases what depends on a cancelled job: the summary must not wait for ever."""
    library.index()
    library.submit()
    store = JobStore(library.database)
    with reading(library.database) as connection:
        part = connection.scalars(select(JobRow.id).where(JobRow.custom_id == "rivers.md#0.1")).one()
    list(cancel_jobs(store, library.connection, [part]))
    collect_summaries(store, library.connection)
    record = library.records()["rivers.md"]
    assert record.state is SummaryState.FAILED
    assert record.error_message == f"job {part}: the job was cancelled"
    library.work()
    states = store.states([record.job_id])
    assert states == {record.job_id: JobState.CANCELLED}
    assert len(library.submit().failed) == 1
    library.work()
    assert library.records()["rivers.md"].state is SummaryState.DONE


def test_wiped_queue_is_rebuilt_and_inputs_are_waited_for(library: Library) -> None:
    library.index()
    library.submit()
    library.connection.flushdb()
    library.work()
    assert all(record.state is SummaryState.DONE for record in library.records().values())
    assert set(library.runner.generations.values()) == {1}


def test_context_that_is_too_small_is_refused_with_its_numbers(library: Library) -> None:
    library.index()
    library.options = RunOptions(context_tokens=250)
    with pytest.raises(ConfigurationError, match=r"^context: \d+ tokens are left for "):
        library.submit()


def test_other_tokenizer_is_refused(library: Library, model: RagModel) -> None:
    library.index()
    library.model = RagModel("other", "f", "other tokenizer", model.max_model_len, model.counter)
    with pytest.raises(PagemillError, match="was split by the tokens of scripted, not of other"):
        library.submit()


def test_collection_that_is_not_there_is_named(library: Library) -> None:
    with pytest.raises(PagemillError, match="no collection 'library' in the database; there is none yet"):
        library.submit()


def test_documents_are_planned_for_the_smallest_cache_of_a_worker(
    library: Library, database: Engine, settings: Settings, connection: redis.Redis
) -> None:
    library.index()
    store = JobStore(database)
    workers: dict[str, dict[str, Any]] = {
        "large": {"num_blocks": 4096},
        "small": {"num_blocks": 25},
        "windows": {"num_blocks": 1, "longest_sequence": 8192},
        "stopped": {"num_blocks": 1},
        "other": {"num_blocks": 1, "model": "another"},
    }
    for name, changes in workers.items():
        store.register_worker(worker_of(name, **{"model": library.model.name, "started_at": utc_now(), **changes}))
    store.stop_worker("stopped")
    whole = library.model
    library.model = within_workers(whole, database, settings)
    assert (library.model.max_model_len, library.model.limited_by) == (400, "the KV cache of worker small")
    with opened_recorder(library.database_url) as recorder:
        plans = [
            Summarizer(database, connection, recorder, model).plan(NAME, PROMPT, RunOptions())
            for model in (whole, library.model)
        ]
        assert plans[0].num_jobs < plans[1].num_jobs
        tight = replace(library.model, max_model_len=120)
        with pytest.raises(ConfigurationError, match=r"are left .*; the KV cache of worker small has 120 tokens"):
            Summarizer(database, connection, recorder, tight).plan(NAME, PROMPT, RunOptions())
        more = RunOptions(context_tokens=401)
        with pytest.raises(ConfigurationError, match=r"^context: 401 is not between 1 and 400, the KV cache of worker"):
            Summarizer(database, connection, recorder, library.model).plan(NAME, PROMPT, more)
    assert store.state_counts() == ()
