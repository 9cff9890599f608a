"""Precedence, bounds and error messages of the settings."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from worker.errors import ConfigurationError, ExitCode, PagemillError
from worker.settings import resolve_settings
from worker.settings_types import parse_size


def write_config(folder: Path, text: str) -> dict[str, str]:
    path = folder / "settings.toml"
    path.write_text(text, "utf-8")
    return {"PAGEMILL_CONFIG": str(path)}


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        resolve_settings(environ=environ)
    assert caught.value.exit_code is ExitCode.CONFIGURATION
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    environ = write_config(tmp_path, "max_jobs = 2\nblock_size = 32\nmax_num_seqs = 8\n")
    environ |= {"PAGEMILL_MAX_JOBS": "3", "PAGEMILL_BLOCK_SIZE": "64"}
    resolved = resolve_settings({"max_jobs": 4, "model": None}, environ=environ)
    settings = resolved.settings
    assert (settings.max_jobs, settings.block_size, settings.max_num_seqs, settings.model) == (4, 64, 8, None)
    assert resolved.sources["max_jobs"] == "flag --max-jobs"
    assert resolved.sources["block_size"] == "PAGEMILL_BLOCK_SIZE"
    assert resolved.sources["max_num_seqs"].endswith("settings.toml: max_num_seqs")
    assert resolved.sources["model"] == "default"


def test_config_file_of_the_working_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_settings(environ={}).settings.queues == ("default",)
    (tmp_path / "pagemill.toml").write_text('queues = ["urgent", "bulk"]\nkv_memory_bytes = "1GiB"\n')
    settings = resolve_settings(environ={}).settings
    assert settings.queues == ("urgent", "bulk")
    assert settings.kv_memory_bytes == 2**30


def test_settings_are_frozen() -> None:
    settings = resolve_settings(environ={}).settings
    with pytest.raises(ValidationError, match="frozen"):
        settings.max_jobs = 1


def test_empty_variable_counts_as_unset() -> None:
    assert resolve_settings(environ={"PAGEMILL_MODEL": ""}).settings.model is None


def test_script_variables_are_known() -> None:
    resolve_settings(environ={"PAGEMILL_VENV": "x", "PAGEMILL_MODELS": "y", "OTHER": "z"})


def test_database_is_sqlite_in_data_dir_unless_set(tmp_path: Path) -> None:
    environ = {"PAGEMILL_DATA_DIR": str(tmp_path)}
    assert resolve_settings(environ=environ).settings.sql_url() == f"sqlite:///{tmp_path}/pagemill.db"
    environ["PAGEMILL_DATABASE_URL"] = "postgresql://u:pw@db/pagemill"
    settings = resolve_settings(environ=environ).settings
    assert settings.sql_url() == "postgresql://u:pw@db/pagemill"
    assert "pw" not in repr(settings)


def test_data_dir_is_absolute_and_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_settings({"data_dir": "x"}, environ={}).settings.data_dir == tmp_path / "x"
    assert resolve_settings(environ={"XDG_DATA_HOME": "/data"}).settings.data_dir == Path("/data/pagemill")
    assert resolve_settings(environ={}).settings.data_dir == Path.home() / ".local/share/pagemill"


def test_secret_can_come_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "redis"
    secret.write_text("redis://:pw@queue:6379/0\n")
    resolved = resolve_settings(environ={"PAGEMILL_REDIS_URL_FILE": str(secret)})
    assert resolved.settings.queue_url() == "redis://:pw@queue:6379/0"
    assert resolved.sources["redis_url"] == "PAGEMILL_REDIS_URL_FILE"
    both = {"PAGEMILL_REDIS_URL_FILE": str(secret), "PAGEMILL_REDIS_URL": "redis://h"}
    assert "both set" in refusal(both)
    secret.write_text("\n")
    assert "is empty" in refusal({"PAGEMILL_REDIS_URL_FILE": str(secret)})
    assert "cannot read" in refusal({"PAGEMILL_REDIS_URL_FILE": str(tmp_path / "absent")})


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("MAX_JOBS", "0", "max_jobs: input should be greater than or equal to 1, got '0' (from PAGEMILL_MAX_JOBS)"),
        ("MAX_JOB", "4", "unknown environment variable PAGEMILL_MAX_JOB; did you mean PAGEMILL_MAX_JOBS?"),
        ("MAX_JOBS", "many", "max_jobs: input should be a valid integer"),
        ("QUEUES", "a,b,a", "names 'a' more than once"),
        ("QUEUES", "a,,b", "queues: names are up to 128 letters"),
        ("BLOCK_SIZE", "24", "block_size: must be a power of two, got '24'"),
        ("KV_MEMORY_BYTES", "lots", "kv_memory_bytes: is not a size"),
        ("DRAIN_SECONDS", "nan", "drain_seconds: input should be a finite number"),
        ("BEAT_SECONDS", "16", "lease_seconds 30 must be at least twice beat_seconds 16"),
        ("DTYPE", "int4", "dtype: input should be 'auto', 'float32', 'bfloat16' or 'float16', got 'int4'"),
        ("CONFIG", "absent.toml", "PAGEMILL_CONFIG: cannot read absent.toml"),
    ],
)
def test_bad_variable_is_refused_in_one_line(variable: str, value: str, words: str) -> None:
    assert words in refusal({f"PAGEMILL_{variable}": value})


def test_password_is_absent_from_the_refusal_of_its_url() -> None:
    message = refusal({"PAGEMILL_REDIS_URL": "http://user:hunter2@host"})
    assert message == "redis_url: must begin with one of redis://, rediss://, unix:// (from PAGEMILL_REDIS_URL)"


def test_bad_flag_is_a_matter_of_usage() -> None:
    with pytest.raises(PagemillError, match=r"block_size: .* got 7 \(from flag --block-size\)") as caught:
        resolve_settings({"block_size": 7}, environ={})
    assert caught.value.exit_code is ExitCode.USAGE


def test_unknown_key_and_bad_toml_name_the_file(tmp_path: Path) -> None:
    message = refusal(write_config(tmp_path, "block_sise = 16"))
    assert message.endswith("settings.toml: unknown setting 'block_sise'; did you mean block_size?")
    assert "is not TOML" in refusal(write_config(tmp_path, "block_size = ="))


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("2GiB", 2 * 2**30), ("1.5 KiB", 1536), ("500MB", 500_000_000), ("2g", 2_000_000_000), ("7b", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "2XB", "GiB", "1e9", "1 2"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)
