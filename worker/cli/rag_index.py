"""`pagemill rag index`: from a folder's files or a query's rows to a collection in SQL."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from worker.cli.options import Size, json_option, store_options
from worker.cli.output import for_display, message, print_json
from worker.cli.progress import StatusLine
from worker.cli.stores import opened_database
from worker.cli.tables import print_table
from worker.errors import ExitCode
from worker.rag.folder import DEFAULT_MAX_FILE_BYTES, FolderSource
from worker.rag.indexing import Change, Indexed, Indexer
from worker.rag.model import open_model
from worker.rag.remembering import source_of
from worker.rag.rows import QuerySource
from worker.rag.sources import Source
from worker.rag.splitting import SplitRule
from worker.settings import load_settings
from worker.sql.collections import existing_collection, find_collection
from worker.sql.database import reading
from worker.sql.recording import ensure_default_database

DEFAULT_CHUNK_TOKENS = 384
DEFAULT_OVERLAP_TOKENS = 48
DEFAULT_RULE = SplitRule(DEFAULT_CHUNK_TOKENS, DEFAULT_OVERLAP_TOKENS)
SHOWN_PROBLEMS = 50


@click.command()
@click.argument("folder", required=False)
@click.option("--collection", "name", metavar="NAME", help="What to call it; made where it is new.")
@click.option("--sql", metavar="QUERY", help="Index rows instead: SELECT id, text FROM ..., or id, text, title.")
@click.option("--sql-url", metavar="URL", help="Where QUERY is run, sqlite:/// or postgresql://; it cannot write.")
@click.option("--chunk-tokens", type=int, help=f"Most tokens of a passage.  [default: {DEFAULT_CHUNK_TOKENS}]")
@click.option(
    "--overlap-tokens",
    type=int,
    help=f"Most tokens that a passage repeats of the one before.  [default: {DEFAULT_OVERLAP_TOKENS}]",
)
@click.option("--max-file-size", type=Size(), help="Of a document.  [default: 50MB]")
@click.option("--encoding", help="Of text files that do not name theirs.  [default: utf-8]")
@click.option("--model", help="Whose tokens are counted; default: the setting model.")
@store_options
@json_option
def index(
    folder: str | None,
    name: str | None,
    sql: str | None,
    sql_url: str | None,
    chunk_tokens: int | None,
    overlap_tokens: int | None,
    max_file_size: int | None,
    encoding: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Index the txt, md, html and pdf files below FOLDER, or the rows of a query.

    With the name of a collection in the place of FOLDER, and nothing else needed, that is indexed again from where it
    came, with the options that it was given before. A password of --sql-url is not kept: libpq then takes it from
    ~/.pgpass or PGPASSWORD.

    Run it again whenever the documents may have changed: only what is new or different is read and split again, and
    what is gone is marked as deleted. A document that cannot be read is reported with the reason and harms no other;
    the text that it had before stays. Exits 1 where there was one.

    \b
    Examples:
      pagemill rag index /srv/manuals --collection manuals
      pagemill rag index manuals
      pagemill rag index --collection tickets --sql "SELECT id, body FROM tickets" --sql-url postgresql://host/shop
    """
    settings = load_settings(flags)
    given = {"max_file_bytes": max_file_size, "encoding": encoding}
    split = {"chunk_tokens": chunk_tokens, "overlap_tokens": overlap_tokens}
    is_again = name is None and sql is None and folder is not None
    new = None if is_again else _source(folder, name, sql, sql_url, given)
    name = name or str(folder)
    ensure_default_database(settings)
    with opened_database(settings) as database:
        if new is not None:
            source, rule = new, _rule(DEFAULT_RULE, split)
        else:
            with reading(database) as connection:
                known = find_collection(connection, name)
                if known is None and Path(name).is_dir():
                    raise click.UsageError("give --collection, the name of what this folder becomes")
                known = known or existing_collection(connection, name)
            source = source_of(known, **given, sql_url=sql_url)
            rule = _rule(SplitRule(known.chunk_tokens, known.overlap_tokens), split)
        model = open_model(settings)
        found = list(_watched(Indexer(database, model, rule).run(name, source)))
    counts = Counter(document.change for document in found)
    problems = [(document.source, document.problem) for document in found if document.change is Change.UNREADABLE]
    if as_json:
        print_json(
            {
                "collection": name,
                "documents": {change.value: counts[change] for change in Change},
                "problems": dict(problems),
                "skipped": list(source.skipped()),
            }
        )
    else:
        print_table(f"Collection {name}", ("documents", "number"), [(change, counts[change]) for change in Change])
        _tell_problems(problems, source)
    if problems:
        sys.exit(ExitCode.JOBS_FAILED)


def _tell_problems(problems: list[tuple[str, str | None]], source: Source) -> None:
    for skipped in source.skipped():
        message(f"skipped: {for_display(skipped)}")
    for name, problem in problems[:SHOWN_PROBLEMS]:
        message(for_display(f"not indexed: {name}: {problem}"))
    if len(problems) > SHOWN_PROBLEMS:
        message(f"and {len(problems) - SHOWN_PROBLEMS} more; pagemill rag ls NAME --problems lists them")


def _watched(documents: Iterator[Indexed]) -> Iterator[Indexed]:
    """Show on a terminal how many documents have been looked at."""
    line = StatusLine()
    try:
        for number, document in enumerate(documents, start=1):
            line.show(f"{number} documents, {document.source[-60:]!r}")
            yield document
    finally:
        line.clear()


def _rule(usual: SplitRule, given: Mapping[str, int | None]) -> SplitRule:
    return replace(usual, **{name: value for name, value in given.items() if value is not None})


def _source(
    folder: str | None, name: str | None, sql: str | None, sql_url: str | None, given: Mapping[str, Any]
) -> Source:
    if (folder is None) == (sql is None):
        raise click.UsageError("give either FOLDER or --sql; or the name of a collection alone")
    if name is None:
        raise click.UsageError("give --collection")
    if (sql is None) != (sql_url is None):
        raise click.UsageError("--sql and --sql-url go together")
    if folder is not None:
        options = {name: value for name, value in given.items() if value is not None}
        return FolderSource(Path(folder).absolute(), **options)
    assert sql is not None, "there is a folder or a query"
    assert sql_url is not None, "it goes with the query"
    if given["encoding"] is not None:
        raise click.UsageError("--encoding is of files; a row's text has none")
    return QuerySource(sql, sql_url, given["max_file_bytes"] or DEFAULT_MAX_FILE_BYTES)
