"""The entry point: a command group that imports a command's module only when that command runs."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.exceptions import Exit, NoArgsIsHelpError

from worker.cli.echo import tell_error
from worker.errors import PagemillError

T = TypeVar("T")

INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command lives, and the one line that the list of commands shows for it."""

    module: str
    attribute: str
    short_help: str


COMMANDS = {
    "up": LazyCommand("worker.cli.up", "up", "Run the queue, the migrations and a worker, with a live panel."),
    "worker": LazyCommand("worker.cli.worker", "worker", "Run a worker that drains the queues."),
    "submit": LazyCommand("worker.cli.submit", "submit", "Submit prompts and print their job ids."),
    "batch": LazyCommand("worker.cli.batch", "batch", "Run files of requests in OpenAI's batch format."),
    "status": LazyCommand("worker.cli.status", "status", "Show the queues, the workers, or the state of some jobs."),
    "show": LazyCommand("worker.cli.show", "show", "Show one job: its prompt, output, figures and attempts."),
    "tail": LazyCommand("worker.cli.tail", "tail", "Print a job's output as it is generated."),
    "cancel": LazyCommand("worker.cli.cancel", "cancel", "Cancel jobs, waiting or running."),
    "retry": LazyCommand("worker.cli.retry", "retry", "Queue failed or cancelled jobs again."),
    "pause": LazyCommand("worker.cli.pause", "pause", "Let no job of a queue start."),
    "resume": LazyCommand("worker.cli.pause", "resume", "Let the jobs of a paused queue start again."),
    "tenant": LazyCommand("worker.cli.tenant", "tenant", "Limit what a tenant may have of the workers."),
    "dead": LazyCommand("worker.cli.dead", "dead", "Dead-lettered jobs: list, show, queue again, purge."),
    "reconcile": LazyCommand("worker.cli.reconcile", "reconcile", "Queue again what SQL has and Redis lost."),
    "serve": LazyCommand("worker.cli.serve", "serve", "Serve OpenAI's HTTP interface in front of the queue."),
    "keys": LazyCommand("worker.cli.keys", "keys", "Make and revoke the API keys of `pagemill serve`."),
    "outbox": LazyCommand("worker.cli.outbox", "outbox", "Jobs that apps submit within their own transactions."),
    "cron": LazyCommand("worker.cli.cron", "cron", "Submit prompts by themselves: schedules and what became of them."),
    "report": LazyCommand("worker.cli.report", "report", "Report on jobs: figures, costs, charts, comparisons."),
    "ledger": LazyCommand("worker.cli.ledger", "ledger", "Show where the workers' time went, and what it cost."),
    "rag": LazyCommand("worker.cli.rag", "rag", "Index documents; search, ask and summarise them in bulk."),
    "plan": LazyCommand("worker.cli.plan", "plan", "Compute what fits in a device's memory."),
    "db": LazyCommand("worker.cli.db", "db", "Create, upgrade and check the database's tables."),
    "doctor": LazyCommand("worker.cli.doctor", "doctor", "Check the installation, the settings and the services."),
    "config": LazyCommand("worker.cli.config", "config", "Show the settings and where each comes from."),
}


class LazyGroup(click.Group):
    """A group over a table of commands. `--help` lists them without importing any."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order, which follows a user's day."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None for a name that is not in the table."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's own options; report a fault as `invoke` does."""
        return _reporting(lambda: super(LazyGroup, self).parse_args(ctx, args))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A user-caused error becomes one line with its exit code, and Ctrl-C becomes 130."""
        return _reporting(lambda: super(LazyGroup, self).invoke(ctx))


def _reporting(action: Callable[[], T]) -> T:
    try:
        return action()
    except PagemillError as error:
        line, exit_code = str(error), int(error.exit_code)
    except NoArgsIsHelpError:
        raise
    except click.ClickException as error:
        line, exit_code = error.format_message(), error.exit_code
        if isinstance(error, click.UsageError) and error.ctx is not None:
            line = f"{line.removesuffix('.')} (see {error.ctx.command_path} --help)"
    except KeyboardInterrupt:
        raise Exit(INTERRUPTED) from None
    tell_error(" ".join(line.split()))
    raise Exit(exit_code)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="pagemill", prog_name="pagemill")
def cli() -> None:
    """Pagemill runs LLM prompts in bulk: queue them, let workers drain them, read the results in SQL.

    \b
    Example:
      pagemill submit "Name three rivers of Europe." --wait

    Settings come from flags, then PAGEMILL_... variables, then pagemill.toml. Exit codes: 0 ok, 1 some jobs failed,
    2 usage, 69 service unavailable, 75 try again later, 78 configuration.
    """


def main() -> None:
    """Run the command line and exit with its code."""
    cli(prog_name="pagemill")
