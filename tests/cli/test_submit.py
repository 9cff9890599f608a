"""`pagemill submit`: what gets into the queue, what does not, and waiting for the outputs."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from tests.cli.conftest import CannedWorker, Run
from worker.queue.connection import connect


def payloads(connection: redis.Redis, queue: str = "default") -> list[dict[str, Any]]:
    """Return the payloads that wait in a queue, first ones first."""
    waiting: list[Job] = Queue(queue, connection=connection, serializer=JSONSerializer).get_jobs()
    return [job.args[0] for job in waiting]


def test_argument(run: Run, empty_queue: redis.Redis) -> None:
    result = run("submit", "Why is the sky blue?")
    assert result.exit_code == 0
    job = Job.fetch(result.stdout.strip(), connection=empty_queue, serializer=JSONSerializer)
    assert job.func_name == "pagemill.prompt"
    assert job.args == ({"schema_version": 1, "prompt": "Why is the sky blue?"},) or job.args == [
        {"schema_version": 1, "prompt": "Why is the sky blue?"}
    ]


def test_flags_become_fields(run: Run, empty_queue: redis.Redis) -> None:
    flags = "--max-tokens 9 --min-tokens 1 --temperature 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --seed 7 --ignore-eos"
    more = ["--stop", "a", "--stop", "b", "--stop-token-id", "5", "--metadata", "k=v=w", "--custom-id", "c"]
    names = ["--tenant", "acme", "--system", "Be brief.", "--model", "m", "--queue", "bulk", "--batch", "night"]
    result = run("submit", "x", "--share-prefix", *flags.split(), *more, *names, "--json")
    assert json.loads(result.stdout)["queue"] == "bulk"
    assert payloads(empty_queue, "bulk") == [
        {
            "schema_version": 1,
            "prompt": "x",
            "system": "Be brief.",
            "model": "m",
            "tenant": "acme",
            "share_prefix": True,
            "batch_id": "night",
            "batch_size": 1,
            "custom_id": "c",
            "metadata": {"k": "v=w"},
            "max_tokens": 9,
            "min_tokens": 1,
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.9,
            "min_p": 0.1,
            "seed": 7,
            "stop": ["a", "b"],
            "stop_token_ids": [5],
            "ignore_eos": True,
        }
    ]


def test_flags_confine_and_penalize(run: Run, empty_queue: redis.Redis, tmp_path: Path) -> None:
    schema = tmp_path / "my city.json"
    schema.write_text('{"type": "object"}')
    penalties = "--presence-penalty 0.5 --frequency-penalty 1 --repetition-penalty 1.2 --logprobs --top-logprobs 2"
    assert run("submit", "x", "--json-schema", str(schema), *penalties.split()).exit_code == 0
    assert run("submit", "x", "--regex", "a|b").exit_code == 0
    first, second = payloads(empty_queue, "default")
    assert first == {
        "schema_version": 1,
        "prompt": "x",
        "presence_penalty": 0.5,
        "frequency_penalty": 1.0,
        "repetition_penalty": 1.2,
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "my_city", "schema": {"type": "object"}},
        },
    }
    assert second["regex"] == "a|b"


def test_flags_bias_and_tell_tokens(run: Run, empty_queue: redis.Redis, tmp_path: Path) -> None:
    grammar = tmp_path / "yes.lark"
    grammar.write_text('start: "yes"\n')
    biases = ("--logit-bias", "5=-100", "--logit-bias", "7=2.5")
    assert run("submit", "x", "--grammar", str(grammar), *biases, "--return-token-ids").exit_code == 0
    (job,) = payloads(empty_queue)
    assert job["grammar"] == 'start: "yes"\n'
    assert job["logit_bias"] == {"5": -100.0, "7": 2.5}
    assert job["return_token_ids"] is True


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--logit-bias", "5"), "logit_bias: '5' is not ID=BIAS"),
        (("--logit-bias", "x=1"), "logit_bias.x"),
        (("--logit-bias", "5=nan"), "logit_bias.5"),
        (("--grammar", "nowhere.lark"), "cannot read nowhere.lark"),
    ],
)
def test_flags_that_are_none(run: Run, flags: tuple[str, str], words: str) -> None:
    result = run("submit", "x", *flags)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(("content", "words"), [(None, "cannot read"), ("{", "is not JSON"), ("[]", "no JSON object")])
def test_a_schema_is_a_file_of_json(run: Run, tmp_path: Path, content: str | None, words: str) -> None:
    schema = tmp_path / "schema.json"
    if content is not None:
        schema.write_text(content)
    result = run("submit", "x", "--json-schema", str(schema))
    assert result.exit_code == 2
    assert words in result.stderr


def test_standard_input_and_files(run: Run, empty_queue: redis.Redis, tmp_path: Path) -> None:
    run("submit", "-", stdin="two\nlines\n")
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"\ufefftext of {name}\n", "utf-8")
    result = run("submit", "--file", "a.txt", "--file", "b.txt", "--raw")
    assert len(result.stdout.splitlines()) == 2
    assert [job["prompt"] for job in payloads(empty_queue)] == ["two\nlines", "text of a.txt", "text of b.txt"]
    assert [job.get("raw") for job in payloads(empty_queue)] == [None, True, True]


def test_jsonl_lines_win_over_flags(run: Run, empty_queue: redis.Redis, tmp_path: Path) -> None:
    lines = [
        '"only a prompt"',
        "",
        '{"prompt": "with fields", "max_tokens": 5, "custom_id": "two"}',
        '{"messages": [{"role": "user", "content": "hello"}]}',
    ]
    (tmp_path / "jobs.jsonl").write_text("\n".join(lines), "utf-8")
    result = run("submit", "--jsonl", "jobs.jsonl", "--max-tokens", "8", "--batch", "b")
    ids = result.stdout.split()
    assert len(ids) == len(set(ids)) == 3
    waiting = payloads(empty_queue)
    assert [job["max_tokens"] for job in waiting] == [8, 5, 8]
    assert {(job["batch_id"], job["batch_size"]) for job in waiting} == {("b", 3)}
    assert waiting[2]["messages"] == [{"role": "user", "content": "hello"}]


def test_jsonl_from_standard_input(run: Run, empty_queue: redis.Redis) -> None:
    assert run("submit", "--jsonl", "-", stdin='"a"\n"b"\n').exit_code == 0
    assert len(payloads(empty_queue)) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["  "], "error: prompt: is empty"),
        (["x" * 1_048_577], "error: payload: has 1048591 bytes; at most 1048576 are accepted"),
        (["a\x00b"], "error: prompt: holds a NUL character at position 1"),
        (["x", "--temperature", "nan"], "error: temperature: Input should be a finite number, got NaN"),
        (["x", "--max-tokens", "0"], "error: max_tokens: Input should be greater than or equal to 1, got 0"),
        (["x", "--max-tokens", "-1"], "error: max_tokens: Input should be greater than or equal to 1, got -1"),
        (["x", "--min-tokens", "9", "--max-tokens", "8"], "error: min_tokens: 9 is above max_tokens 8"),
        (["x", "--top-p", "0"], "error: top_p: Input should be greater than 0"),
        (["x", "--stop", ""], "error: stop.0: String should have at least 1 character"),
        (["x", *["--stop", "s"] * 17], "error: stop: Tuple should have at most 16 items"),
        (["x", "--tenant", "a b"], "error: tenant: String should match pattern"),
        (["x", "--metadata", "novalue"], "error: metadata: 'novalue' is not NAME=VALUE"),
        (["x", "--raw", "--system", "s"], "error: raw: takes a prompt only"),
        (["x", "--queue", "a b"], "error: Invalid value for '--queue': 'a b' is not a queue's name"),
        ([], "error: give one of PROMPT (- is standard input), --file and --jsonl"),
        (["x", "--file", "y"], "error: give one of PROMPT"),
        (["--file", "absent"], "error: absent: cannot be read: No such file or directory"),
        (["--jsonl", "absent"], "error: absent: cannot be read"),
    ],
    ids=lambda value: None if isinstance(value, list) else value[7:30],
)
def test_bad_input_is_refused_before_redis(
    run: Run, empty_queue: redis.Redis, arguments: list[str], words: str
) -> None:
    result = run("submit", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(words)
    assert result.stderr.count("\n") == 1
    assert empty_queue.keys("rq:*") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: is not JSON"),
        ("[1]", "line 2: is a JSON array; a string (the prompt) or an object (a job) is needed"),
        ("null", "line 2: is a JSON null"),
        (
            '{"prompt": "x", "temperatur": 1}',
            "line 2: temperatur: unknown field; the fields are schema_version, prompt",
        ),
        ('{"prompt": "x", "temperature": NaN}', "line 2: temperature: Input should be a finite number, got NaN"),
        ('{"prompt": "x", "temperature": "hot"}', "line 2: temperature: Input should be a valid number"),
        ('{"prompt": "x", "max_tokens": 1e9}', "line 2: max_tokens: Input should be"),
        ('{"prompt": "\\ud800"}', "line 2: "),
        ('{"prompt": ""}\n{"prompt": ""}', "line 2: prompt: is empty; it needs at least one character"),
        ("[" * 100_000, "line 2: is not JSON"),
    ],
    ids=lambda value: value[:40],
)
def test_one_bad_line_refuses_the_whole_file(run: Run, empty_queue: redis.Redis, line: str, words: str) -> None:
    result = run("submit", "--jsonl", "-", stdin=f'"good"\n{line}\n"good"\n')
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {words}")
    assert result.stderr.count("\n") == 1
    assert empty_queue.keys("rq:*") == []


def test_file_without_jobs_is_refused(run: Run) -> None:
    result = run("submit", "--jsonl", "-", stdin="\n\n")
    assert (result.exit_code, result.stderr) == (2, "error: jsonl: - holds no jobs\n")


def test_number_of_other_faults_is_told(run: Run) -> None:
    assert "(and 2 more faults)" in run("submit", "--jsonl", "-", stdin='""\n""\n""\n').stderr


def test_text_that_is_not_utf8_is_refused(run: Run) -> None:
    result = run("submit", "-", stdin=b"abc\xff")
    assert (result.exit_code, result.stderr) == (2, "error: standard input: is not UTF-8: byte 0xff at position 3\n")


def test_full_redis_exits_75(run: Run, tmp_path: Path) -> None:
    with closing(connect(None, tmp_path / "full")) as connection:
        connection.config_set("maxmemory", 1)
        result = run("submit", "x", "--redis-url", connection_url(connection))
    assert result.exit_code == 75
    assert "is full" in result.stderr
    assert result.stderr.count("\n") == 1


def connection_url(connection: redis.Redis) -> str:
    return f"unix://{connection.connection_pool.connection_kwargs['server'].paths.socket_path}"


@pytest.fixture
def answering(canned_worker: CannedWorker) -> Iterator[threading.Event]:
    """Answer jobs from a thread, as long as the test runs: those of the queue `bulk` fail."""
    stopped = threading.Event()

    def answer() -> None:
        while not stopped.wait(0.01):
            for claim in canned_worker.claim():
                fails = claim.queue == "bulk"
                canned_worker.end(claim, None if fails else f"answer to {claim.job.prompt}", "prompt has 9 tokens")

    thread = threading.Thread(target=answer)
    thread.start()
    yield stopped
    stopped.set()
    thread.join()


@pytest.mark.usefixtures("answering")
def test_wait_prints_the_output_alone(run: Run) -> None:
    result = run("submit", "one", "--wait")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "answer to one\n", "")


@pytest.mark.usefixtures("answering")
def test_wait_names_each_of_several_jobs(run: Run) -> None:
    result = run("submit", "--jsonl", "-", "--wait", stdin='"one"\n{"prompt": "two", "custom_id": "second"}\n')
    lines = result.stdout.splitlines()
    assert lines[0].startswith("== ")
    assert lines[1] == "answer to one"
    assert lines[2].endswith(" (second)")
    assert lines[3] == "answer to two"


@pytest.mark.usefixtures("answering")
def test_wait_exits_1_when_a_job_failed(run: Run) -> None:
    result = run("submit", "one", "--queue", "bulk", "--wait")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "failed: context_length: prompt has 9 tokens" in result.stderr
    assert "1 of 1 jobs failed" in result.stderr


@pytest.mark.usefixtures("answering")
def test_wait_streams_json(run: Run) -> None:
    result = run("submit", "--jsonl", "-", "--wait", "--json", stdin='"one"\n"two"\n')
    ends = [json.loads(line) for line in result.stdout.splitlines()]
    assert [end["state"] for end in ends] == ["done", "done"]
    assert ends[0]["result"]["text"] == "answer to one"


@pytest.mark.parametrize("path", ["ten-megabytes", "/dev/zero"])
def test_file_that_no_job_may_hold_is_not_read_to_its_end(
    run: Run, empty_queue: redis.Redis, tmp_path: Path, path: str
) -> None:
    (tmp_path / "ten-megabytes").write_text("x" * 10_000_000)
    result = run("submit", "--file", path)
    assert result.exit_code == 2
    assert result.stderr == f"error: {path}: has more than 1048576 bytes, which is the most that a job may have\n"
    assert empty_queue.keys("rq:*") == []
