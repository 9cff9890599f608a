"""Settings: flag > environment (`PAGEMILL_...`) > TOML file > default. The only reader of the environment.

A pydantic model of our own rather than pydantic-settings: importing that package takes 0.14 s, and a producer's
`pagemill submit` has to answer in well under half a second.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from worker.errors import ConfigurationError, PagemillError

PREFIX = "PAGEMILL_"
CONFIG_VARIABLE = "PAGEMILL_CONFIG"  # names the TOML file
DEFAULT_CONFIG_FILE = "pagemill.toml"  # read from the working directory when it is there
FLAG = "flag --"  # how the source of a command-line value begins
SECRET_FIELDS = ("redis_url", "database_url")  # each also has a ..._FILE variable
OTHER_VARIABLES = frozenset(  # read by scripts/ and tests/, no settings
    {"PAGEMILL_VENV", "PAGEMILL_MODELS", "PAGEMILL_TEST_REDIS_URL", "PAGEMILL_TEST_POSTGRESQL_URL"}
)
REDIS_SCHEMES = ("redis", "rediss", "unix")
DATABASE_SCHEMES = ("sqlite", "postgresql", "postgres", "sqlite+pysqlite", "postgresql+psycopg")
QUEUE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?) *(?P<unit>[kmgt]?i?b?)", re.IGNORECASE)
_UNIT_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(value: object) -> object:
    """Return the bytes of a size such as "2GiB", "500 MB" or 1048576; ValueError when it is none.

    KiB, MiB, GiB, TiB count in 1024, KB, MB, GB, TB in 1000. Anything but text is returned as it is.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("is not a size; write for example 2GiB, 500MB or a number of bytes")
    unit = match["unit"].lower().removesuffix("b")
    base = 1024 if unit.endswith("i") else 1000
    return int(float(match["number"]) * base ** _UNIT_EXPONENTS[unit.removesuffix("i")])


def _split_names(value: object) -> object:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def _is_queue_name(name: str) -> str:
    if not QUEUE_PATTERN.fullmatch(name):
        raise ValueError("names are up to 128 letters, digits, '.', '_' and '-'")
    return name


def _names_are_unique(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"names {name!r} more than once")
    return names


def _is_power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("must be a power of two")
    return value


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _check_scheme(schemes: tuple[str, ...]) -> AfterValidator:
    def check(url: SecretStr) -> SecretStr:
        scheme, separator, _ = url.get_secret_value().partition("://")
        if not separator or scheme not in schemes:
            raise ValueError(f"must begin with one of {', '.join(f'{name}://' for name in schemes)}")
        return url

    return AfterValidator(check)


QueueName = Annotated[str, AfterValidator(_is_queue_name)]
ByteSize = Annotated[int, BeforeValidator(parse_size)]


class Settings(BaseModel):
    """All settings, complete at construction. Bounds are part of each field; see `resolve_settings` for the sources."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    redis_url: Annotated[SecretStr, _check_scheme(REDIS_SCHEMES)] | None = Field(
        default=None, description="Redis or Valkey: redis://, rediss:// or unix://; unset starts an embedded one"
    )
    database_url: Annotated[SecretStr, _check_scheme(DATABASE_SCHEMES)] | None = Field(
        default=None, description="sqlite:/// or postgresql://; unset is pagemill.db in data_dir"
    )
    data_dir: Annotated[Path, AfterValidator(_absolute)] = Field(
        default=Path("~/.local/share/pagemill"),
        validate_default=True,
        description="folder of the embedded queue and of SQLite; $XDG_DATA_HOME/pagemill where that is set",
    )
    queues: Annotated[tuple[QueueName, ...], BeforeValidator(_split_names), AfterValidator(_names_are_unique)] = Field(
        default=("default",), min_length=1, max_length=64, description="queues a worker drains, first ones first"
    )
    model: str | None = Field(
        default=None, min_length=1, max_length=4096, description="a hub id, a local folder or a GGUF file"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="type of the weights and of the KV cache"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto is a GPU where there is one")
    max_jobs: int = Field(default=64, ge=1, le=4096, description="jobs that a worker holds at once")
    drain_seconds: float = Field(
        default=30.0, ge=0.0, le=3600.0, allow_inf_nan=False, description="time to finish held jobs after SIGTERM"
    )
    block_size: Annotated[int, AfterValidator(_is_power_of_two)] = Field(
        default=16, ge=8, le=256, description="KV slots in a block, a power of two"
    )
    kv_memory_bytes: ByteSize | None = Field(
        default=None,
        ge=1,
        description="memory of the KV cache, for example 2GiB; unset takes what the device can spare",
    )
    max_num_seqs: int = Field(default=64, ge=1, le=4096, description="requests in one step")
    token_budget: int | None = Field(
        default=None, ge=16, le=1_048_576, description="tokens computed in one step; unset fits the device"
    )
    max_model_len: int | None = Field(
        default=None, ge=16, le=16_777_216, description="longest prompt plus output, tokens; unset is the model's limit"
    )
    enable_prefix_caching: bool = Field(default=True, description="reuse the KV blocks of equal prefixes")
    lease_seconds: float = Field(
        default=30.0,
        ge=1.0,
        le=3600.0,
        allow_inf_nan=False,
        description="time after which a silent worker's jobs go on",
    )
    beat_seconds: float = Field(
        default=5.0, gt=0.0, le=1200.0, allow_inf_nan=False, description="time between two renewals of the leases"
    )
    sweep_seconds: float = Field(
        default=5.0, gt=0.0, le=3600.0, allow_inf_nan=False, description="time between two searches for lapsed leases"
    )
    result_ttl_seconds: int = Field(
        default=86_400, ge=1, le=31_536_000, description="time a result stays in Redis; SQL keeps it"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe message that is logged"
    )

    @model_validator(mode="after")
    def _lease_outlasts_beats(self) -> Self:
        if self.lease_seconds < 2 * self.beat_seconds:
            raise ValueError(
                f"lease_seconds {self.lease_seconds:g} must be at least twice beat_seconds {self.beat_seconds:g}"
            )
        return self

    def queue_url(self) -> str | None:
        """Return the Redis URL with its password, or None for the embedded queue."""
        return self.redis_url.get_secret_value() if self.redis_url else None

    def sql_url(self) -> str:
        """Return the database URL with its password; SQLite in `data_dir` when none is set."""
        return self.database_url.get_secret_value() if self.database_url else f"sqlite:///{self.data_dir}/pagemill.db"


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Settings, and for each field where its value came from ("default", "flag --x", "PAGEMILL_X", "file: x")."""

    settings: Settings
    sources: Mapping[str, str]


def resolve_settings(
    flags: Mapping[str, object] | None = None, *, environ: Mapping[str, str] | None = None
) -> ResolvedSettings:
    """Merge the sources. `flags` holds field values from the command line, None where a flag was not given.

    Raise ConfigurationError, naming field, value and source, for an unknown key or a value out of bounds; a flag's
    value out of bounds is a PagemillError of usage.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, object] = {}
    sources = dict.fromkeys(Settings.model_fields, "default")
    for name, value, source in _layers(flags or {}, environ):
        values[name], sources[name] = value, source
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise _fault(error, sources) from None
    return ResolvedSettings(settings, sources)


def load_settings(flags: Mapping[str, object] | None = None) -> Settings:
    """Return the settings of this process; see `resolve_settings`."""
    return resolve_settings(flags).settings


def _layers(flags: Mapping[str, object], environ: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    """Yield (field, value, source), weakest source first."""
    if environ.get("XDG_DATA_HOME"):
        yield "data_dir", Path(environ["XDG_DATA_HOME"]) / "pagemill", "default"
    yield from _read_file(environ.get(CONFIG_VARIABLE))
    yield from _read_environment(environ)
    for name, value in flags.items():
        if value is not None:
            yield name, value, f"{FLAG}{name.replace('_', '-')}"


def _read_file(named: str | None) -> Iterator[tuple[str, object, str]]:
    path = Path(named or DEFAULT_CONFIG_FILE)
    if not named and not path.exists():
        return
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{CONFIG_VARIABLE}: cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: is not TOML: {error}") from None
    for key, value in table.items():
        if key not in Settings.model_fields:
            raise ConfigurationError(f"{path}: unknown setting {key!r}{_suggest(key, Settings.model_fields)}")
        yield key, value, f"{path}: {key}"


def _read_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    """Yield the fields that variables set; an empty variable counts as unset."""
    variables = {PREFIX + name.upper(): name for name in Settings.model_fields}
    files = {f"{PREFIX}{name.upper()}_FILE": name for name in SECRET_FIELDS}
    known = {*variables, *files, CONFIG_VARIABLE, *OTHER_VARIABLES}
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        if variable not in known:
            raise ConfigurationError(f"unknown environment variable {variable}{_suggest(variable, known)}")
        if not environ[variable]:
            continue
        if variable in variables:
            yield variables[variable], environ[variable], variable
        elif variable in files:
            plain = variable.removesuffix("_FILE")
            if environ.get(plain):
                raise ConfigurationError(f"{plain} and {variable} are both set; keep one of them")
            yield files[variable], _read_secret(variable, environ[variable]), variable


def _read_secret(variable: str, path: str) -> str:
    try:
        secret = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{variable}: cannot read {path}: {reason}") from None
    if not secret:
        raise ConfigurationError(f"{variable}: {path} is empty")
    return secret


def _suggest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _fault(error: ValidationError, sources: Mapping[str, str]) -> PagemillError:
    """Return the first fault as one line, without the value of a secret; one in a flag is a matter of usage."""
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return ConfigurationError(message)
    name = str(first["loc"][0])
    source = sources.get(name, name)
    given = "" if name in SECRET_FIELDS else f", got {first['input']!r}"
    line = f"{name}: {message[0].lower()}{message[1:]}{given} (from {source})"
    return PagemillError(line) if source.startswith(FLAG) else ConfigurationError(line)
