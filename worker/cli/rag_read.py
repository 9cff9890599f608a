"""`pagemill rag ls`, `show`, `export` and `rm`: what is in the collections."""

import sys
from typing import Any

import click
from sqlalchemy import Connection

from worker.cli.options import json_option, store_options
from worker.cli.output import for_display, message, print_json, print_text
from worker.cli.stores import opened_database
from worker.cli.tables import print_fields, print_table
from worker.errors import PagemillError
from worker.rag.exporting import ExportFormat, export
from worker.settings import load_settings
from worker.sql import collections, summaries
from worker.sql.collections import DocumentRecord, existing_collection
from worker.sql.database import reading, writing
from worker.sql.summaries import SummaryRecord
from worker.sql.tables import SummaryState

COLLECTION_COLUMNS = ("collection", "documents", "tokens", "passages", "summaries", "pending", "failed", "unreadable")
DOCUMENT_COLUMNS = ("document", "title", "tokens", "summary", "changed")


@click.command("ls")
@click.argument("name", required=False)
@click.option("--problems", is_flag=True, help="Only documents that could not be read, or whose summary failed.")
@store_options
@json_option
def list_all(name: str | None, problems: bool, as_json: bool, **flags: Any) -> None:
    """List the collections, or the documents of the collection NAME.

    \b
    Examples:
      pagemill rag ls
      pagemill rag ls manuals --problems
    """
    if problems and name is None:
        raise click.UsageError("--problems needs the NAME of a collection")
    with opened_database(load_settings(flags)) as database, reading(database) as connection:
        if name is None:
            _print_collections(connection, as_json=as_json)
            return
        collection = existing_collection(connection, name)
        documents = collections.find_documents(connection, collection.id)
        latest = {record.document_id: record for record in summaries.find_summaries(connection, collection.id)}
    if problems:
        _print_problems(documents, latest, as_json=as_json)
    elif as_json:
        print_json([{"document": document, "summary": latest.get(document.id)} for document in documents])
    else:
        print_table(f"Collection {name}", DOCUMENT_COLUMNS, [_row(one, latest.get(one.id)) for one in documents])


def _row(document: DocumentRecord, record: SummaryRecord | None) -> tuple[object, ...]:
    return (document.source, document.title, document.num_tokens, _state(document, record), document.changed_at)


def _print_collections(connection: Connection, *, as_json: bool) -> None:
    found = [
        (one, collections.count_collection(connection, one.id)) for one in collections.find_collections(connection)
    ]
    if as_json:
        print_json([{"name": one.name, "source": one.source, "counts": counts} for one, counts in found])
        return
    rows = []
    for one, counts in found:
        states = (counts.summaries_done, counts.summaries_pending, counts.summaries_failed)
        rows.append((one.name, counts.documents, counts.tokens, counts.chunks, *states, counts.problems))
    print_table("Collections", COLLECTION_COLUMNS, rows)


def _print_problems(documents: tuple[DocumentRecord, ...], latest: dict[int, SummaryRecord], *, as_json: bool) -> None:
    found: list[tuple[str, str, str | None]] = [
        (document.source, "unreadable", document.problem) for document in documents if document.problem
    ]
    for document in documents:
        record = latest.get(document.id)
        if record is not None and record.state is SummaryState.FAILED:
            found.append((document.source, "summary failed", record.error_message))
    if as_json:
        print_json([dict(zip(("document", "problem", "reason"), row, strict=True)) for row in found])
    else:
        print_table("Problems", ("document", "problem", "reason"), found)


def _state(document: DocumentRecord, record: SummaryRecord | None) -> str:
    if document.deleted_at is not None:
        return "deleted"
    if document.problem is not None and record is None:
        return "unreadable"
    if record is None:
        return "none"
    return record.state.value if record.is_current else f"{record.state.value}, of an earlier text"


@click.command()
@click.argument("name")
@click.argument("source", metavar="DOCUMENT")
@click.option("--text", "text_only", is_flag=True, help="Print the document's text only.")
@store_options
@json_option
def show(name: str, source: str, text_only: bool, as_json: bool, **flags: Any) -> None:
    """Show one document of the collection NAME, and its summary. DOCUMENT is its path below the folder, or its id.

    \b
    Examples:
      pagemill rag show manuals pumps/filter.pdf
      pagemill rag show manuals pumps/filter.pdf --text
    """
    with opened_database(load_settings(flags)) as database, reading(database) as connection:
        collection = existing_collection(connection, name)
        found = {document.source: document for document in collections.find_documents(connection, collection.id)}
        document = found.get(source)
        if document is None:
            raise PagemillError(f"no document {source!r} in the collection {name}; pagemill rag ls {name} lists them")
        record = next(
            (s for s in summaries.find_summaries(connection, collection.id) if s.document_id == document.id), None
        )
        text = "".join(c.text[c.overlap_characters :] for c in collections.find_chunks(connection, [document.id]))
    if text_only:
        print_text(text)
    elif as_json:
        print_json({"document": document, "summary": record, "text": text})
    else:
        _print_document(document, record)


def _print_document(document: DocumentRecord, record: SummaryRecord | None) -> None:
    fields: dict[str, object] = {
        "document": document.source,
        "title": document.title,
        "format": document.format,
        "characters": document.num_characters,
        "tokens": document.num_tokens,
        "changed": document.changed_at,
        "deleted": document.deleted_at,
        "problem": document.problem,
        "summary": _state(document, record),
    }
    if record is not None:
        fields |= {
            "summary ended": record.ended_at,
            "summary by": record.model,
            "batch": record.batch_id,
            "job": record.job_id,
            "jobs": record.num_jobs,
            "error": record.error_message,
        }
    print_fields("Document", {name: value for name, value in fields.items() if value is not None})
    if record is not None and record.text is not None:
        click.echo("Summary:")
        print_text("\n".join(f"  {line}" for line in record.text.split("\n")))


@click.command("export")
@click.argument("name")
@click.option(
    "--format", "form", type=click.Choice([form.value for form in ExportFormat]), default="markdown", show_default=True
)
@store_options
def export_summaries(name: str, form: str, **flags: Any) -> None:
    """Print the summaries of the collection NAME: the latest of each document that is not deleted.

    In CSV, cells that a spreadsheet would take for a formula begin with an apostrophe.

    \b
    Examples:
      pagemill rag export manuals > summaries.md
      pagemill rag export manuals --format csv > summaries.csv
    """
    with opened_database(load_settings(flags)) as database, reading(database) as connection:
        collection = existing_collection(connection, name)
        found = summaries.find_summaries(connection, collection.id)
        done = [record for record in found if record.state is SummaryState.DONE and record.deleted_at is None]
        num_documents = collections.count_collection(connection, collection.id).documents
    for piece in export(done, ExportFormat(form), f"Summaries of {name}"):
        click.echo(for_display(piece), nl=False, color=True)
    if len(done) < num_documents:
        message(f"{num_documents - len(done)} of {num_documents} documents have no summary yet")


@click.command("rm")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_options
def remove(name: str, yes: bool, **flags: Any) -> None:
    """Remove the collection NAME with its passages and summaries. Its source, and jobs and their results, stay.

    \b
    Example:
      pagemill rag rm manuals --yes
    """
    with opened_database(load_settings(flags)) as database:
        with reading(database) as connection:
            collection = existing_collection(connection, name)
            counts = collections.count_collection(connection, collection.id)
        if not yes:
            if not sys.stdin.isatty():
                raise PagemillError(f"{name} has {counts.documents} documents; --yes removes them")
            click.confirm(
                f"Remove {name} with {counts.documents} documents and {counts.summaries_done} summaries?",
                abort=True,
                err=True,
            )
        with writing(database) as connection:
            collections.remove_collection(connection, collection.id)
    message(f"removed {name}")
