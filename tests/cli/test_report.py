"""`pagemill report`: its kinds, formats, files, and what it refuses."""

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.cli.conftest import CannedWorker, Run
from worker.cli.report import report

KINDS = [name for name in report.commands if name not in ("job", "html", "compare")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_without_jobs(run: Run, kind: str) -> None:
    assert run("report", kind).exit_code == 0
    json.loads(run("report", kind, "--json").stdout)
    assert run("report", kind, "--format", "csv").stdout.count("\n") <= 10
    assert "<svg" not in run("report", kind, "--format", "html").stdout


def test_report_formats(run: Run, canned_worker: CannedWorker, tmp_path: Path) -> None:
    run("submit", "one", "--queue", "bulk")
    canned_worker.answer("fine")
    lines = run("report", "prefix", "--format", "csv").stdout.splitlines()
    assert lines == [
        "tenant,model,jobs,jobs_with_hit,prompt_tokens,prefix_hit_tokens,hit_rate",
        "default,,1,1,10,4,0.4",
    ]
    assert run("report", "latency", "-o", "latency.parquet").stdout == ""
    table = pyarrow.parquet.read_table(tmp_path / "latency.parquet")
    assert table.column("metric").to_pylist()[2] == "ttft_ms"
    assert table.column("p50").to_pylist()[2] == 30.0
    assert run("report", "-o", "summary.json").exit_code == 0
    assert json.loads((tmp_path / "summary.json").read_text())["jobs_by_state"]["done"] == 1
    assert run("report", "memory", "--output", "memory.txt").exit_code == 0
    assert "8 KiB" in (tmp_path / "memory.txt").read_text()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--json", "--format", "csv"), "--json contradicts --format csv"),
        (("-o", "absent/report.csv"), "cannot write absent/report.csv: No such file or directory"),
        (("-o", "."), "is a directory"),
    ],
)
def test_bad_destinations_are_refused(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run("report", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert words in result.stderr


def test_every_kind_in_html(run: Run, canned_worker: CannedWorker, tmp_path: Path) -> None:
    run("submit", "<script>", "--batch", "</script>")
    canned_worker.answer("fine")
    for kind in KINDS:
        assert run("report", kind, "-o", f"{kind}.html").exit_code == 0
        assert (tmp_path / f"{kind}.html").read_text().startswith("<!doctype html>")
    assert run("report", "html", "--since", "1h", "-o", "all.html").exit_code == 0
    page = (tmp_path / "all.html").read_text()
    assert page.count("<script>") == page.count("</script>") == 1
    assert all(f'id="{name}"' in page for name in ("throughput", "latency", "cost", "workers", "jobs"))


def test_flags_may_come_before_the_kind(run: Run, canned_worker: CannedWorker) -> None:
    run("submit", "one", "--queue", "bulk")
    canned_worker.answer("fine")
    assert (
        run("report", "--queue", "bulk", "--json", "latency").stdout
        == run("report", "latency", "--queue", "bulk", "--json").stdout
    )
    assert json.loads(run("report", "--queue", "none", "--json").stdout)["jobs_by_state"]["done"] == 0


def test_groups(run: Run, canned_worker: CannedWorker) -> None:
    run("submit", "one", "--queue", "bulk", "--batch", "night")
    run("submit", "two")
    canned_worker.answer("fine")
    rows = json.loads(run("report", "summary", "--by", "queue,batch", "--json").stdout)
    assert [(row["queue"], row["batch"]) for row in rows] == [("bulk", "night"), ("default", None)]
    assert "Throughput by day" in run("report", "throughput", "--by", "day").stdout


def test_a_summary_names_failures(run: Run, canned_worker: CannedWorker) -> None:
    run("submit", "one")
    canned_worker.answer(None, "too long")
    assert "Failed or dead: context_length 1." in run("report").stdout


def test_one_job(run: Run, canned_worker: CannedWorker, tmp_path: Path) -> None:
    job_id = run("submit", "one").stdout.strip()
    canned_worker.answer("fine")
    found = json.loads(run("report", "job", job_id, "--json").stdout)
    assert (found["job"]["job_id"], found["phases"][0]["phase"]) == (job_id, "queued")
    assert "running" in run("report", "job", job_id).stdout
    assert run("report", "job", job_id, "-o", "job.html").exit_code == 0
    assert job_id in (tmp_path / "job.html").read_text()


def test_two_runs(run: Run, canned_worker: CannedWorker, tmp_path: Path) -> None:
    for batch in ("monday", "tuesday"):
        run("submit", "one", "--batch", batch)
        canned_worker.answer("fine")
    found = json.loads(run("report", "compare", "monday", "tuesday", "--json").stdout)
    assert (found["a"]["name"], found["b"]["chosen"]["batch"]) == ("batch monday", "tuesday")
    assert {"metric": "ttft_p50_ms", "verdict": "same"}.items() <= found["figures"][11].items()
    assert "A: batch monday, B: 1h..:" in run("report", "compare", "monday", "1h..").stdout
    assert run("report", "compare", "monday", "tuesday", "-o", "two.html").exit_code == 0
    assert "much worse" not in (tmp_path / "two.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("latency", "--by", "colour"), "'colour': group by queue, model, tenant, batch, hour, day, or several"),
        (("latency", "--by", "queue,queue"), "names something twice"),
        (("workers", "--by", "queue"), "'queue': group by model, hour, day"),
        (("workers", "--queue", "bulk"), "No such option '--queue'"),
        (("--since", "1h", "--until", "2h"), "--since: has to be before --until"),
        (("job", "absent"), "no job absent with figures in the database"),
        (("compare", "absent", "1h.."), "batch absent: no jobs"),
        (("compare", "yesterday..", "1h.."), "'yesterday' is not a time"),
        (("compare", "1h..2h", "1h.."), "1h..2h: FROM has to be before TO"),
        (("html", "--json"), "report html is always HTML"),
    ],
)
def test_bad_questions_are_refused(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run("report", *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr


def test_parquet_without_pyarrow_names_its_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.extras.find_spec", lambda name: None)
    result = run("report", "--format", "parquet", "-o", "x.parquet")
    assert result.exit_code == 78
    assert result.stderr == "error: the Parquet format needs the pyarrow package: pip install 'pagemill[parquet]'\n"
