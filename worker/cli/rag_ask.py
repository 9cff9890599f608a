"""`pagemill rag ask`: answers from a collection, with the passages that they rest on."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import chain
from typing import Any
from uuid import uuid4

import click
from sqlalchemy import Engine

from worker.cli.options import json_option, service_options
from worker.cli.output import for_display, message, print_json, print_json_line, print_text
from worker.cli.progress import Progress, StatusLine
from worker.cli.queues import opened_queue
from worker.cli.rag_options import rag_job_options
from worker.cli.stores import opened_database
from worker.cli.tables import print_table
from worker.errors import ExitCode, InvalidJob, PagemillError
from worker.job_files import opened_jsonl
from worker.queue.submission import enqueue
from worker.rag.answering import (
    DEFAULT_INSTRUCTIONS,
    DEFAULT_MAX_TOKENS,
    DEFAULT_PASSAGES,
    Answer,
    AnswerPrompt,
    Asker,
    Question,
    Retrieved,
    checked_question,
    in_prefix_order,
    job_fields,
    job_id,
    nothing_found,
)
from worker.rag.capacity import within_workers
from worker.rag.model import RagModel, open_model
from worker.rag.retrieval import open_searcher
from worker.rag.summarizing import required_collection
from worker.settings import load_settings
from worker.settings_model import Settings
from worker.sql.database import reading
from worker.sql.recording import recorder_of

CUT = "length"  # the finish reason
EXCERPT_CHARACTERS = 60
QUESTION_FIELDS = frozenset({"question", "custom_id"})


@click.command()
@click.argument("name")
@click.argument("question", required=False)
@click.option(
    "--questions", metavar="PATH", help="A question on each line: a JSON string or object. - is standard input."
)
@click.option("--passages", type=int, default=DEFAULT_PASSAGES, show_default=True, help="Most passages in a prompt.")
@click.option(
    "--instructions", metavar="TEXT", default=DEFAULT_INSTRUCTIONS, help="How to answer, in place of the usual."
)
@click.option("--max-tokens", type=int, default=DEFAULT_MAX_TOKENS, show_default=True, help="Longest answer.")
@rag_job_options
@click.option("--batch", "batch_id", metavar="NAME", help="Name of the batch; the same one goes on with it.")
@click.option("--no-wait", is_flag=True, help="Print the ids of the jobs; `pagemill show ID` has the answers.")
@click.option("--dry-run", is_flag=True, help="Only print the passages that would be given.")
@service_options
@json_option
def ask(
    name: str,
    question: str | None,
    questions: str | None,
    passages: int,
    instructions: str,
    max_tokens: int,
    temperature: float,
    context_tokens: int | None,
    queue: str | None,
    batch_id: str | None,
    tenant: str,
    no_wait: bool,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Answer QUESTION from the passages of the collection NAME that fit it best, and name them.

    With --questions, many: objects have `question` and, if you like, `custom_id`; answers are JSON lines as they come.
    Questions that find the same passages are put one after another, so that these are computed once. Under a --batch of
    your own, the same command goes on where it was interrupted. Exits 1 where a question has no answer.

    \b
    Examples:
      pagemill rag ask manuals "How is the filter changed?"
      pagemill rag ask manuals --questions questions.jsonl --batch monday > answers.jsonl
    """
    if (question is None) == (questions is None):
        raise click.UsageError("give either QUESTION or --questions")
    settings = load_settings({**flags, "queues": None if queue is None else (queue,)})
    prompt = AnswerPrompt(instructions, max_tokens, temperature, passages, context_tokens)
    asked = [checked_question(question)] if question is not None else _read(str(questions))
    is_many = questions is not None
    with ExitStack() as opened:
        model = open_model(settings)
        recorder = opened.enter_context(recorder_of(settings))
        database = opened.enter_context(opened_database(settings))
        model = within_workers(model, database, settings)
        asker = _asker(settings, database, name, model, prompt)
        found, lost = _retrieve(asker, asked)
        if dry_run:
            _print_passages(asker, found, lost, as_json=as_json)
            return
        connection = opened.enter_context(opened_queue(settings))
        batch = batch_id or f"ask.{name[:80]}.{datetime.now(UTC):%Y%m%dT%H%M%S}.{uuid4().hex[:8]}"
        by_id = {job_id(batch, one): one for one in found}
        fields = job_fields(batch if is_many or batch_id else None, len(by_id), name, tenant)
        jobs = asker.jobs(list(by_id.values()), fields, batch)
        for ids in enqueue(
            connection,
            jobs,
            queue=settings.queues[0],
            result_ttl_seconds=settings.result_ttl_seconds,
            recorder=recorder,
        ):
            if no_wait:
                click.echo("\n".join(ids))
        if no_wait:
            failed = len(lost)
        else:
            failed = _print_answers(
                lost, asker.answers(by_id), len(by_id) + len(lost), is_many=is_many, as_json=as_json
            )
    if no_wait and lost:
        message(f"{len(lost)} questions were not put: no passage has a word of them")
    if failed:
        sys.exit(ExitCode.JOBS_FAILED)


def _asker(settings: Settings, database: Engine, name: str, model: RagModel, prompt: AnswerPrompt) -> Asker:
    with reading(database) as connection:
        collection = required_collection(connection, name, model)
    line = StatusLine()
    try:
        searcher = open_searcher(
            database, collection, settings.data_dir, lambda number: line.show(f"{number} passages indexed for search")
        )
    finally:
        line.clear()
    return Asker(database, searcher, model, prompt)


def _read(path: str) -> list[Question]:
    """Return the questions of a file, all of them valid, or raise an error that says where the first fault is."""
    asked = []
    with opened_jsonl(path) as read:
        for place, fields in read():
            try:
                asked.append(_question(fields))
            except InvalidJob as error:
                raise PagemillError(f"{place}: {error}") from None
    if not asked:
        raise InvalidJob("questions", f"{path} holds no questions")
    return asked


def _question(fields: Mapping[str, Any]) -> Question:
    """Return the question of a line; one that is a JSON string comes as the prompt of a job."""
    named = {("question" if name == "prompt" else name): value for name, value in fields.items()}
    unknown = named.keys() - QUESTION_FIELDS
    if unknown:
        raise InvalidJob(min(unknown), f"unknown field; the fields are {', '.join(sorted(QUESTION_FIELDS))}")
    return checked_question(named.get("question"), named.get("custom_id"))


def _retrieve(asker: Asker, asked: Iterable[Question]) -> tuple[list[Retrieved], list[Answer]]:
    line = StatusLine()
    retrieved = []
    try:
        for number, question in enumerate(asked, start=1):
            retrieved.append(asker.retrieve(question))
            line.show(f"passages found for {number} questions")
    finally:
        line.clear()
    lost = [nothing_found(one) for one in retrieved if not one.hits]
    return in_prefix_order([one for one in retrieved if one.hits]), lost


def _print_passages(asker: Asker, found: list[Retrieved], lost: list[Answer], *, as_json: bool) -> None:
    passages = [(one, asker.passages(one)) for one in found]
    if as_json:
        print_json(
            [{"question": one.question.text, "passages": chunks} for one, chunks in passages]
            + [{"question": answer.question.text, "passages": []} for answer in lost]
        )
        return
    for one, chunks in passages:
        scores = [hit.score for hit in one.hits]
        rows = [
            (
                chunk.source,
                chunk.position + 1,
                chunk.num_tokens,
                score,
                " ".join(chunk.text.split())[:EXCERPT_CHARACTERS],
            )
            for chunk, score in zip(chunks, scores, strict=True)
        ]
        print_table(for_display(one.question.text), ("document", "passage", "tokens", "score", "begins"), rows)
    for answer in lost:
        message(for_display(f"{answer.question.text}: {answer.error}"))


def _print_answers(lost: list[Answer], answers: Iterator[Answer], total: int, *, is_many: bool, as_json: bool) -> int:
    """Print answers as they come, and return how many questions have none."""
    failed = 0
    progress = Progress(total)
    try:
        progress.draw(0)
        for done, answer in enumerate(chain(lost, answers), start=1):
            failed += answer.text is None
            progress.clear()
            if is_many:
                print_json_line(_as_json(answer))
            elif as_json:
                print_json(_as_json(answer))
            else:
                _print_answer(answer)
            progress.draw(done, failed)
    finally:
        progress.clear()
    return failed


def _as_json(answer: Answer) -> dict[str, object]:
    return {
        "question": answer.question.text,
        "custom_id": answer.question.custom_id,
        "answer": answer.text,
        "finish_reason": answer.finish_reason,
        "error": answer.error,
        "sources": answer.sources,
        "job_id": answer.job_id,
    }


def _print_answer(answer: Answer) -> None:
    if answer.text is None:
        message(for_display(f"no answer: {answer.error}"))
    else:
        print_text(answer.text.strip())
    if answer.finish_reason == CUT:
        message("the answer was cut at --max-tokens")
    if answer.sources:
        click.echo("\nSources:")
    for source in answer.sources:
        where = f"{source.source}, passage {source.passage + 1}"
        title = "" if source.title == source.source else f" ({source.title})"
        print_text(f"  [{source.number}] {where}{title}{'' if source.cited else ', not cited'}")
