"""The group: help, exit codes, and errors of one line."""

import signal
import subprocess
import sys
from typing import Any

import click
import pytest
import redis
from click.testing import CliRunner

from tests.cli.conftest import ROOT, Run, RunProcess, all_commands
from worker.cli import main
from worker.cli.main import COMMANDS, LazyCommand, LazyGroup, cli
from worker.errors import TryLater


def test_help_lists_every_command_with_the_help_of_the_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert f"  {name} " in result.output
        assert entry.short_help.endswith(".")


@pytest.mark.parametrize("name", [name for name, _ in all_commands()])
def test_every_help_has_an_example(name: str) -> None:
    result = CliRunner().invoke(cli, [*name.split(), "--help"], prog_name="pagemill")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"pagemill {name}" in result.output


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from worker.cli.main import cli; cli(['--help'], standalone_mode=False); "
        "print(*sorted(name for name in sys.modules if name.startswith('worker')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["worker", "worker.cli", "worker.cli.echo", "worker.cli.main", "worker.errors"]


@pytest.mark.parametrize(
    "name",
    [
        *("submit", "status", "show", "cancel", "retry", "report", "plan", "db current", "doctor", "config show"),
        *("pause", "resume", "tenant list"),
    ],
)
def test_commands_that_print_data_offer_json(name: str) -> None:
    assert "--json" in CliRunner().invoke(cli, [*name.split(), "--help"]).output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], "error: No such command 'nope' (see pagemill --help)"),
        (["--bad"], "error: No such option '--bad' (see pagemill --help)"),
        (["cancel"], "error: give either IDs or --batch (see pagemill cancel --help)"),
        (["retry"], "error: Missing argument 'ID...' (see pagemill retry --help)"),
        (["db", "nope"], "error: No such command 'nope' (see pagemill db --help)"),
        (["submit", "x", "--max-tokens", "z"], "error: Invalid value for '--max-tokens': 'z' is not a valid integer"),
        (["report", "speed"], "error: No such command 'speed' (see pagemill report --help)"),
    ],
)
def test_usage_errors_are_one_line(run: Run, arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(words)
    assert result.stderr.count("\n") == 1


def failing_group(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> click.Group:
    """Return a group whose only command raises."""

    @click.command()
    def fails() -> None:
        raise failure

    monkeypatch.setattr(main, "COMMANDS", {"fails": LazyCommand(__name__, "fails", "Fails.")})
    monkeypatch.setattr(sys.modules[__name__], "fails", fails, raising=False)
    return LazyGroup("pagemill")


def test_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(failing_group(monkeypatch, KeyboardInterrupt()), ["fails"])
    assert result.exit_code == 128 + signal.SIGINT


def test_error_of_several_lines_becomes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(failing_group(monkeypatch, TryLater("full\n  of jobs")), ["fails"])
    assert (result.exit_code, result.stderr) == (75, "error: full of jobs\n")


NEEDS_REDIS: list[tuple[str, ...]] = [("submit", "x"), ("status",), ("cancel", "x"), ("retry", "x")]
NEEDS_DATABASE: list[tuple[str, ...]] = [
    ("status",),
    ("show", "x"),
    ("tail", "x"),
    ("cancel", "x"),
    ("retry", "x"),
    ("report",),
    ("db", "upgrade"),
    ("db", "current"),
    ("db", "check"),
]


@pytest.mark.parametrize("arguments", NEEDS_REDIS, ids=" ".join)
def test_unreachable_redis_exits_69_without_its_password(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--redis-url", "redis://user:hunter2@127.0.0.1:1/0")
    assert_unavailable(result.exit_code, result.stdout, result.stderr)


@pytest.mark.parametrize("arguments", NEEDS_DATABASE, ids=" ".join)
def test_unreachable_database_exits_69_without_its_password(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--database-url", "postgresql://user:hunter2@127.0.0.1:1/pagemill")
    assert_unavailable(result.exit_code, result.stdout, result.stderr)


def test_exit_codes_of_real_processes(run_process: RunProcess, empty_queue: redis.Redis) -> None:
    unreachable: dict[str, Any] = {"PAGEMILL_REDIS_URL": "redis://:hunter2@127.0.0.1:1"}
    done = run_process("submit", "x", **unreachable)
    assert_unavailable(done.returncode, done.stdout, done.stderr)
    assert run_process("--version").returncode == 0
    assert run_process("submit", "").returncode == 2
    assert run_process("config", "show", PAGEMILL_MAX_JOB="1").returncode == 78
    assert run_process("submit", "x").returncode == 0
    assert empty_queue.llen("rq:queue:default") == 1


def test_closed_pipe_is_no_traceback(run_process: RunProcess, environ: dict[str, str]) -> None:
    program = f"{sys.executable} -c 'from worker.cli.main import main; main()' config show | true"
    done = subprocess.run(
        ["bash", "-c", program],
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr


def assert_unavailable(exit_code: int, stdout: str, stderr: str) -> None:
    assert exit_code == 69, stderr
    assert stdout == ""
    assert stderr.startswith("error: cannot ")
    assert stderr.count("\n") == 1
    assert "hunter2" not in stderr
    assert "127.0.0.1:1" in stderr


def test_key_that_holds_something_else_is_one_line(run: Run, empty_queue: redis.Redis) -> None:
    empty_queue.sadd("rq:queues", "rq:queue:default")
    empty_queue.set("rq:queue:default", "the-text-of-a-prompt")
    result = run("status")
    assert result.exit_code == 69
    assert result.stderr.startswith("error: a key in unix://")
    assert result.stderr.endswith("is not what it should be: WRONGTYPE\n")
