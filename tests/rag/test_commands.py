"""`pagemill rag` as a user has it: what it prints, what it refuses, and its exit codes."""

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from tests.rag.summaries import encode_messages
from tests.worker.fakes import ScriptedRunner, make_flow, running
from worker.cli.main import cli
from worker.errors import ExitCode
from worker.queue.embedded import embedded_url
from worker.sql.database import open_database
from worker.sql.store import JobStore

Run = Callable[..., Result]
REPLY = "=cmd() is <b>bold</b> [2]"


@pytest.fixture
def run(
    embedded_data_dir: Path,
    connection: redis.Redis,
    sqlite_url: str,
    model_folder: Path,
    documents: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Run a command of `pagemill rag` beside the folder of documents."""
    monkeypatch.setenv("PAGEMILL_REDIS_URL", embedded_url(embedded_data_dir))
    monkeypatch.setenv("PAGEMILL_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("PAGEMILL_DATA_DIR", str(documents.parent / "data"))
    monkeypatch.setenv("PAGEMILL_MODEL", str(model_folder))
    monkeypatch.chdir(documents.parent)

    def run(*arguments: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(cli, ("rag", *arguments), input=stdin, prog_name="pagemill")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def worker(run: Run, connection: redis.Redis, sqlite_url: str) -> Iterator[ScriptedRunner]:
    """A worker with a scripted model that runs beside the commands."""
    runner = ScriptedRunner(reply=lambda prompt: REPLY)
    database = open_database(sqlite_url)
    with running(make_flow(connection, JobStore(database), runner, encode=encode_messages)):
        yield runner
    database.dispose()


def index(run: Run) -> Result:
    return run("index", "documents", "--collection", "library", "--chunk-tokens", "60", "--overlap-tokens", "8")


def test_from_a_folder_to_an_export(run: Run, worker: ScriptedRunner) -> None:
    done = index(run)
    assert done.exit_code == ExitCode.OK
    assert "added            5" in done.stdout
    planned = json.loads(run("summarize", "library", "--max-tokens", "30", "--dry-run", "--json").stdout)
    assert planned["new"][0]["source"] == "rivers.md"
    assert planned["batch"] is None
    done = run("summarize", "library", "--max-tokens", "30", "--wait", "--json")
    assert done.exit_code == ExitCode.OK
    ended = json.loads(done.stdout)
    assert (ended["submitted"], ended["done"], ended["failed"]) == (5, 5, 0)
    done = run("summarize", "library", "--max-tokens", "30", "--json")
    assert json.loads(done.stdout)["unchanged"] == 5

    markdown = run("export", "library").stdout
    assert markdown.startswith("# Summaries of library\n\n## bees\n\n*bees.txt*\n\n=cmd() is &lt;b>bold&lt;/b> [2]\n")
    (first, *_) = csv.DictReader(io.StringIO(run("export", "library", "--format", "csv").stdout))
    assert first["summary"] == "'=cmd() is <b>bold</b> [2]"
    lines = run("export", "library", "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line)["source"] for line in lines] == [
        "bees.txt",
        "clocks.txt",
        "maps.txt",
        "rivers.md",
        "tides.txt",
    ]
    (collection,) = json.loads(run("ls", "--json").stdout)
    assert collection["counts"]["summaries_done"] == 5
    assert "done" in run("ls", "library").stdout
    shown = json.loads(run("show", "library", "bees.txt", "--json").stdout)
    assert shown["summary"]["text"] == REPLY
    assert run("show", "library", "bees.txt", "--text").stdout.startswith("All about bees.")
    assert run("rm", "library", "--yes").exit_code == ExitCode.OK
    assert run("ls", "--json").stdout == "[]\n"


def test_answers_come_with_their_sources(run: Run, worker: ScriptedRunner) -> None:
    index(run)
    done = run("ask", "library", "What do people like about BEES (or tides)?", "--json", "--max-tokens", "40")
    assert done.exit_code == ExitCode.OK
    answer = json.loads(done.stdout)
    assert answer["answer"] == REPLY
    sources = {source["source"]: source["cited"] for source in answer["sources"]}
    assert sources["bees.txt"] is False
    assert sum(sources.values()) == 1  # the second one
    (prompt,) = worker.order
    assert prompt.index("[1] bees (bees.txt)") < prompt.index("Question: What do people like")

    done = run("ask", "library", "What do people like about BEES?", "--max-tokens", "40")
    assert done.stdout.startswith(f"{REPLY}\n\nSources:\n  [1] bees.txt, passage 1 (bees), not cited\n")


def test_many_questions_in_prefix_order_and_once(run: Run, worker: ScriptedRunner) -> None:
    index(run)
    questions = [
        {"question": "Are tides old?", "custom_id": "1"},
        {"question": "Are bees old?", "custom_id": "2"},
        "Do people like tides?",
        "Xyzzy?",
    ]
    lines = "\n".join(map(json.dumps, questions))
    arguments = ("ask", "library", "--questions", "-", "--passages", "1", "--batch", "monday", "--max-tokens", "40")
    done = run(*arguments, stdin=lines)
    assert done.exit_code == ExitCode.JOBS_FAILED
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert {answer["question"]: answer["answer"] for answer in answers} == {
        "Xyzzy?": None,
        "Are tides old?": REPLY,
        "Are bees old?": REPLY,
        "Do people like tides?": REPLY,
    }
    assert answers[0]["error"] == "no passage of the collection has a word of the question"
    asked = [prompt.rpartition("Question: ")[2] for prompt in worker.order]
    assert asked == ["Are bees old?", "Are tides old?", "Do people like tides?"]
    assert len(run(*arguments, stdin=lines).stdout.splitlines()) == 4
    assert len(worker.order) == 3  # the same batch again: no job runs twice


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("index", "--collection", "x"), ExitCode.USAGE, "give either FOLDER or --sql"),
        (("index", "documents", "--collection", "no/slash"), ExitCode.USAGE, "collection: 'no/slash' is no name"),
        (("index", "nowhere", "--collection", "x"), ExitCode.USAGE, "is not a folder"),
        (("index", "scripted", "--collection", "x"), ExitCode.USAGE, "holds no documents; nothing was changed"),
        (
            ("index", "documents", "--collection", "x", "--chunk-tokens", "7"),
            ExitCode.USAGE,
            "chunk_tokens: is 7; 32 to",
        ),
        (("summarize", "none"), ExitCode.USAGE, "no collection 'none' in the database"),
        (("ask", "none", "Why?"), ExitCode.USAGE, "no collection 'none' in the database"),
        (("ask", "none"), ExitCode.USAGE, "give either QUESTION or --questions"),
        (("ask", "none", " "), ExitCode.USAGE, "question: is empty"),
        (("summarize", "none", "--max-tokens", "0"), ExitCode.USAGE, "max_tokens: is 0; 1 to"),
        (("summarize", "none", "--model", "nowhere.gguf"), ExitCode.CONFIGURATION, "model: "),
        (("show", "none", "x"), ExitCode.USAGE, "no collection 'none'"),
        (("export", "none"), ExitCode.USAGE, "no collection 'none'"),
    ],
)
def test_what_cannot_be_is_one_line(run: Run, arguments: tuple[str, ...], exit_code: ExitCode, message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == exit_code
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_bad_line_of_questions_is_named_and_nothing_is_asked(run: Run, connection: redis.Redis) -> None:
    index(run)
    done = run("ask", "library", "--questions", "-", stdin='"Why?"\n{"question": "How?", "id": 1}\n')
    assert done.exit_code == ExitCode.USAGE
    assert done.stderr == "error: line 2: id: unknown field; the fields are custom_id, question\n"
    assert connection.keys("rq:job:*") == []


def test_unreadable_document_keeps_its_text_and_is_listed(run: Run, documents: Path) -> None:
    index(run)
    (documents / "bees.txt").write_bytes(b"\xff\xfe\xff")
    (documents / "new.pdf").write_bytes(b"%PDF-1.4 nothing")
    done = index(run)
    assert done.exit_code == ExitCode.JOBS_FAILED
    assert "not indexed: new.pdf: cannot be read as PDF: " in done.stderr
    problems = json.loads(run("ls", "library", "--problems", "--json").stdout)
    assert [problem["document"] for problem in problems] == ["bees.txt", "new.pdf"]
    assert run("show", "library", "bees.txt", "--text").stdout.startswith("All about bees.")
    again = index(run)  # neither is parsed again, and both are told again
    assert again.stderr == done.stderr
    shutil.copy(documents / "maps.txt", documents / "bees.txt")
    (documents / "new.pdf").unlink()
    assert index(run).exit_code == ExitCode.OK


def test_rows_of_a_query_are_indexed_and_read_only(run: Run, sqlite_url: str) -> None:
    query = "SELECT 'row ' || 1, 'A text about bees.', 'Bees'"
    done = run("index", "--collection", "rows", "--sql", query, "--sql-url", sqlite_url, "--json")
    assert json.loads(done.stdout)["documents"]["added"] == 1
    done = run("index", "--collection", "rows", "--sql", "DELETE FROM jobs", "--sql-url", sqlite_url)
    assert done.exit_code == ExitCode.USAGE
    assert "sql: begins with DELETE; only a query that reads is run" in done.stderr
    done = run("index", "documents", "--collection", "rows")
    assert "collection rows was indexed from sql" in done.stderr


def test_a_collection_is_indexed_again_by_its_name(run: Run, documents: Path) -> None:
    (documents / "old.txt").write_bytes("Zürich".encode("latin-1"))
    assert run("index", "documents").exit_code == ExitCode.USAGE
    short = ("--overlap-tokens", "8")
    first = run(
        "index", "documents", "--collection", "library", "--encoding", "latin-1", "--chunk-tokens", "64", *short
    )
    assert first.exit_code == 0, first.stderr
    again = json.loads(run("index", "library", "--json").stdout)
    assert again["documents"] == {"added": 0, "changed": 0, "unchanged": 6, "unreadable": 0, "deleted": 0}
    utf8 = run("index", "library", "--encoding", "utf-8")
    assert (utf8.exit_code, "not indexed: old.txt: is not utf-8" in utf8.stderr) == (ExitCode.JOBS_FAILED, True)
    for arguments, words in (
        (("index", "nothing"), "no collection 'nothing' in the database; there are library"),
        (("index", "library", "--sql-url", "sqlite:////tmp/x"), "sql_url: collection library was indexed from folder"),
        (("index", "documents", "--chunk-tokens", "0", "--collection", "x"), "chunk_tokens: is 0"),
        (("index",), "give either FOLDER or --sql; or the name of a collection alone"),
        (("index", "documents"), "give --collection, the name of what this folder becomes"),
    ):
        refused = run(*arguments)
        assert (refused.exit_code, words in refused.stderr) == (ExitCode.USAGE, True), refused.stderr
