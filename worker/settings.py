"""Where settings come from: flag > environment (`PAGEMILL_...`) > TOML file > default. Nothing else reads those.

A pydantic model of our own rather than pydantic-settings: importing that package takes 0.14 s, and a producer's
`pagemill submit` has to answer in well under half a second.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from worker.errors import ConfigurationError, PagemillError
from worker.settings_model import Settings

PREFIX = "PAGEMILL_"
CONFIG_VARIABLE = "PAGEMILL_CONFIG"  # names the TOML file
DEFAULT_CONFIG_FILE = "pagemill.toml"  # read from the working directory when it is there
DEFAULT = "default"  # the source of a value that nobody set
FLAG = "flag --"  # how the source of a command-line value begins
MAX_SECRET_CHARACTERS = 65_536  # of a file: it may be a device that has no end
SECRET_FIELDS = ("redis_url", "database_url")  # each also has a ..._FILE variable
UNTOLD_FIELDS = (*SECRET_FIELDS, "trace_endpoint")  # errors do not show their values: passwords may be in them
OTHER_VARIABLES = frozenset(  # read by scripts/ and tests/, no settings
    {"PAGEMILL_VENV", "PAGEMILL_MODELS", "PAGEMILL_TEST_REDIS_URL", "PAGEMILL_TEST_POSTGRESQL_URL"}
)


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
    sources = dict.fromkeys(Settings.model_fields, DEFAULT)
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
        yield "data_dir", Path(environ["XDG_DATA_HOME"]) / "pagemill", DEFAULT
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
        with Path(path).open(encoding="utf-8") as file:
            secret = file.read(MAX_SECRET_CHARACTERS).strip()
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
    given = "" if name in UNTOLD_FIELDS else f", got {first['input']!r}"
    line = f"{name}: {message[0].lower()}{message[1:]}{given} (from {source})"
    return PagemillError(line) if source.startswith(FLAG) else ConfigurationError(line)
