"""report, db, doctor and config."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import CannedWorker, Run
from tests.cli.model_folders import AWQ, CONFIG, write_folder
from worker.sql import schema


def test_reports_of_finished_jobs(run: Run, canned_worker: CannedWorker) -> None:
    run("submit", "--jsonl", "-", "--batch", "night", stdin='"one"\n"two"\n')
    canned_worker.answer("fine")
    run("submit", "three")
    canned_worker.answer(None, "too long")
    summary = json.loads(run("report", "--json").stdout)
    assert summary["jobs_by_state"]["done"] == 2
    assert summary["failures_by_error_code"] == {"context_length": 1}
    assert "output tokens" in run("report").stdout
    latency = json.loads(run("report", "latency", "--json").stdout)
    assert {row["metric"]: row["p50"] for row in latency}["ttft_ms"] == 30.0
    assert "itl p99" in run("report", "latency").stdout
    assert "8 KiB" in run("report", "memory").stdout
    prefix = json.loads(run("report", "prefix", "--by", "queue", "--json").stdout)
    assert prefix[0]["queue"] == "default"
    assert prefix[0]["hit_rate"] == pytest.approx(0.4)
    assert "40%" in run("report", "prefix").stdout


def test_report_filters(run: Run, canned_worker: CannedWorker) -> None:
    run("submit", "one", "--batch", "night", "--queue", "bulk", "--model", "m")
    run("submit", "two")
    canned_worker.answer("fine")

    def done(*filters: str) -> int:
        count = json.loads(run("report", "--json", *filters).stdout)["jobs_by_state"]["done"]
        assert isinstance(count, int)
        return count

    assert done() == 2
    assert [done("--batch", "night"), done("--queue", "bulk"), done("--model", "m")] == [1, 1, 1]
    assert [done("--since", "1h"), done("--since", "2020-01-01"), done("--since", "2100-01-01")] == [2, 2, 0]


@pytest.mark.parametrize("since", ["yesterday", "1y", "-1h", "2026-13-01", "9" * 400 + "d"])
def test_bad_time_is_refused(run: Run, since: str) -> None:
    result = run("report", "--since", since)
    assert result.exit_code == 2
    assert "write for example 1h, 7d, 2026-05-01" in result.stderr


def test_db_upgrade_current_and_check(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/fresh/new.db"
    assert run("db", "check", "--database-url", url).exit_code == 78
    assert json.loads(run("db", "current", "--json", "--database-url", url).stdout)["revision"] is None
    assert run("db", "upgrade", "--database-url", url).exit_code == 0
    assert "already at" in run("db", "upgrade", "--database-url", url).stderr
    assert run("db", "current", "--database-url", url).stdout == f"{schema.head()} (up to date)\n"
    assert run("db", "check", "--database-url", url).exit_code == 0


def test_db_check_prints_each_difference(run: Run, environ: dict[str, str], tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "pagemill.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        in_others_table = run("db", "check")
        connection.execute("ALTER TABLE jobs ADD COLUMN note TEXT")
        connection.execute("DROP INDEX ix_jobs_ended_at")
    result = run("db", "check")
    assert (in_others_table.exit_code, result.exit_code) == (0, 78)
    assert "1 tables of others are here too: orders" in in_others_table.stderr
    assert [line.split() for line in result.stdout.splitlines()[2:]] == [
        ["table", "jobs", "index", "ix_jobs_ended_at", "is", "missing", "breaking"],
        ["table", "jobs", "column", "note", "is", "extra", "extra"],
    ]
    document = json.loads(run("db", "check", "--json").stdout)
    assert document["other_tables"] == ["orders"]
    assert [difference["harm"] for difference in document["differences"]] == ["breaking", "extra"]


def test_doctor_of_a_sound_machine(run: Run) -> None:
    result = run("doctor", "--json")
    assert result.exit_code == 0, result.stdout
    verdicts = {row["check"]: row["verdict"] for row in json.loads(result.stdout)}
    assert verdicts["queue"] == verdicts["database"] == verdicts["kernels"] == "ok"
    assert verdicts["model"] == "warn"
    assert "Valkey" in run("doctor").stdout


def test_doctor_tells_what_is_unavailable_without_passwords(run: Run) -> None:
    urls = ("--redis-url", "redis://u:hunter2@127.0.0.1:1", "--database-url", "postgresql://u:hunter2@127.0.0.1:1/d")
    result = run("doctor", *urls)
    assert result.exit_code == 69
    assert result.output.count("127.0.0.1:1") >= 2
    assert "hunter2" not in result.output


def test_doctor_names_a_wrong_setting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEMILL_MAX_JOB", "1")
    result = run("doctor")
    assert result.exit_code == 78
    assert "did you mean PAGEMILL_MAX_JOBS?" in result.stdout


def test_doctor_names_a_missing_model_and_an_empty_database(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PAGEMILL_MODEL", "./absent")
    result = run("doctor", "--database-url", f"sqlite:///{tmp_path}/none.db")
    assert result.exit_code == 78
    assert "./absent is neither a folder" in result.stdout
    assert "pagemill db upgrade" in result.stdout


def test_doctor_tells_how_a_models_weights_are_held(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_folder(tmp_path / "model", {**CONFIG, "quantization_config": AWQ})
    monkeypatch.setenv("PAGEMILL_MODEL", "model")

    def model() -> str:
        (detail,) = [row["detail"] for row in json.loads(run("doctor", "--json").stdout) if row["check"] == "model"]
        assert isinstance(detail, str)
        return detail

    assert model() == "model: AWQ 4 bit, dequantised when it is loaded"
    monkeypatch.setenv("PAGEMILL_DTYPE", "bfloat16")
    monkeypatch.setenv("PAGEMILL_WEIGHTS", "int8")
    assert model() == "model: AWQ 4 bit, dequantised to bfloat16; int8 weights"
    write_folder(tmp_path / "plain", CONFIG)
    monkeypatch.setenv("PAGEMILL_MODEL", "plain")
    assert model() == "plain: int8 weights"
    write_folder(tmp_path / "other", {**CONFIG, "quantization_config": {"quant_method": "hqq"}})
    monkeypatch.setenv("PAGEMILL_MODEL", "other")
    assert "its weights are quantised by 'hqq'; supported are awq" in model()


def test_config_show_masks_passwords(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEMILL_MAX_JOBS", "8")
    result = run("config", "show", "--redis-url", "redis://user:hunter2@example.org:6379/0")
    assert result.exit_code == 0
    assert "hunter2" not in result.output
    assert "redis://example.org:6379/0" in result.stdout
    shown = json.loads(run("config", "show", "--json").stdout)
    assert shown["max_jobs"] == {"value": 8, "source": "PAGEMILL_MAX_JOBS"}
    assert shown["queues"] == {"value": ["default"], "source": "default"}
