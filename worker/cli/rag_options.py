"""The options that `pagemill rag ask` and `pagemill rag summarize` share: how much, where and for whom."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from worker.cli.options import QueueName, TenantName
from worker.jobs import DEFAULT_TENANT

P = ParamSpec("P")
R = TypeVar("R")

RAG_JOB_OPTIONS = (
    click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy."),
    click.option(
        "--context",
        "context_tokens",
        type=int,
        help="Longest prompt and output.  [default: the model's, or the workers' KV caches where these are smaller]",
    ),
    click.option("--queue", type=QueueName(), help="Default: the first of the setting queues."),
    click.option(
        "--tenant", type=TenantName(), default=DEFAULT_TENANT, show_default=True, help="Whose jobs these are."
    ),
    click.option("--model", help="The model, as the worker has it; default: the setting model."),
)


def rag_job_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the options of `RAG_JOB_OPTIONS`."""
    for option in reversed(RAG_JOB_OPTIONS):
        command = option(command)
    return command
