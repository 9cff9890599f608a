"""`pagemill rag`: documents, from a folder or a query to answers and summaries."""

import click

from worker.cli.rag_ask import ask
from worker.cli.rag_index import index
from worker.cli.rag_read import export_summaries, list_all, remove, show
from worker.cli.rag_summarize import summarize


@click.group()
def rag() -> None:
    """Index documents into a collection, then ask it questions and summarise it, in bulk.

    \b
    Examples:
      pagemill rag index manuals --collection manuals
      pagemill rag ask manuals "How is the filter changed?"
      pagemill rag summarize manuals --wait
      pagemill rag export manuals --format markdown > summaries.md
    """


for command in (index, ask, summarize, list_all, show, export_summaries, remove):
    rag.add_command(command)
