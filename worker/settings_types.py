"""The types of settings: what a value may look like, checked where it is read, and the errors that say so."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr

from worker.functions.allow_list import ENTRY_PATTERN
from worker.running.failpoints import parse_faults

REDIS_SCHEMES = ("redis", "rediss", "unix")
DATABASE_SCHEMES = ("sqlite", "postgresql", "postgres", "sqlite+pysqlite", "postgresql+psycopg")
QUEUE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
QUEUE_RULE = "up to 128 letters, digits, '.', '_' and '-'"
CURRENCY_PATTERN = re.compile(r"\S{1,16}")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?) *(?P<unit>[kmgt]?i?b?)", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):)?(?P<port>\d{1,5})", re.ASCII)
LOCALHOST = "127.0.0.1"
MAX_PORT = 65_535
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


class LogFormat(StrEnum):
    """How a log line looks."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int  # 0 is any that is free

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address of "PORT" (on this machine alone), "HOST:PORT" or "[IPV6]:PORT"; ValueError if it is none."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > MAX_PORT:
        raise ValueError("is not an address; write for example 8080, 0.0.0.0:8080 or [::1]:8080")
    return Address((match["host"] or LOCALHOST).strip("[]"), int(match["port"]))


def _is_address(text: str) -> str:
    parse_address(text)
    return text


def _is_collector(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ValueError("is not the address of a collector; write for example http://localhost:4318")
    if parts.username or parts.password or parts.query:
        raise ValueError("must have no user, password or query; put credentials into OTEL_EXPORTER_OTLP_HEADERS")
    return url


def _split_names(value: object) -> object:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def _is_queue_name(name: str) -> str:
    if not QUEUE_PATTERN.fullmatch(name):
        raise ValueError(f"names are {QUEUE_RULE}")
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


def _is_currency(text: str) -> str:
    if not CURRENCY_PATTERN.fullmatch(text) or not text.isprintable():
        raise ValueError("is up to 16 printable characters without blanks, for example USD")
    return text


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _are_faults(text: str) -> str:
    parse_faults(text)
    return text


def _check_scheme(schemes: tuple[str, ...]) -> AfterValidator:
    def check(url: SecretStr) -> SecretStr:
        scheme, separator, _ = url.get_secret_value().partition("://")
        if not separator or scheme not in schemes:
            raise ValueError(f"must begin with one of {', '.join(f'{name}://' for name in schemes)}")
        return url

    return AfterValidator(check)


def _is_function_entry(name: str) -> str:
    if not ENTRY_PATTERN.fullmatch(name):
        raise ValueError(f"{name!r} is no dotted name such as shop.tasks.invoice, and no module such as shop.tasks.*")
    return name


RedisUrl = Annotated[SecretStr, _check_scheme(REDIS_SCHEMES)]
DatabaseUrl = Annotated[SecretStr, _check_scheme(DATABASE_SCHEMES)]
CollectorUrl = Annotated[str, AfterValidator(_is_collector)]
ListenAddress = Annotated[str, AfterValidator(_is_address)]
Folder = Annotated[Path, AfterValidator(_absolute)]
QueueName = Annotated[str, AfterValidator(_is_queue_name)]
QueueNames = Annotated[tuple[QueueName, ...], BeforeValidator(_split_names), AfterValidator(_names_are_unique)]
FunctionEntry = Annotated[str, AfterValidator(_is_function_entry)]
FunctionEntries = Annotated[tuple[FunctionEntry, ...], BeforeValidator(_split_names), AfterValidator(_names_are_unique)]
ByteSize = Annotated[int, BeforeValidator(parse_size)]
PowerOfTwo = Annotated[int, AfterValidator(_is_power_of_two)]
Currency = Annotated[str, AfterValidator(_is_currency)]
Faults = Annotated[str, AfterValidator(_are_faults)]
