"""URLs of Redis and Valkey: what may stand in one, and how it is shown without its secrets."""

import os
import re
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from redis.connection import parse_url

from worker.errors import ConfigurationError

SCHEMES = ("redis", "rediss", "unix")
COMMON_OPTIONS = frozenset({"username", "password", "db", "client_name", "health_check_interval", "max_connections"})
TLS_FILES = frozenset({"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"})
TLS_OPTIONS = TLS_FILES | {"ssl_password", "ssl_cert_reqs", "ssl_check_hostname"}
CERT_REQUIREMENTS = ("required", "optional", "none")
MALFORMED = "(malformed URL)"

_DATABASE_PATH = re.compile(r"/?|/[0-9]{1,9}")


def parse_redis_url(url: str) -> dict[str, Any]:
    """Return redis-py's options of a URL, those of TLS in its query among them.

    Raises ConfigurationError, in one line that shows neither the URL nor the value of an option.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise _fault(f"must begin with one of {', '.join(f'{name}://' for name in SCHEMES)}")
    shown = describe_url(url)
    if shown == MALFORMED:
        raise _fault("is malformed; in a user name or a password write '@', '/', '?' and '#' as %40, %2F, %3F and %23")
    parts = urlsplit(url)
    _check_options(scheme, dict(parse_qsl(parts.query, keep_blank_values=True)))
    if scheme == "unix":
        if not parts.path:
            raise _fault("unix:// needs the path of a socket")
    elif not _DATABASE_PATH.fullmatch(parts.path):
        raise _fault("its path must be the number of a database, as in /0")
    try:
        options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError:
        raise _fault(f"{shown}: an option in the query has a value of the wrong kind") from None
    return options


def describe_url(url: str) -> str:
    """Return a URL without its user, password and query, for messages and logs."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return MALFORMED
    if _holds_raw_password(parts):
        return MALFORMED
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    path = parts.path if _DATABASE_PATH.fullmatch(parts.path) else ""  # anything else is a mistake, and whose?
    return f"{parts.scheme}://{host or 'localhost'}{f':{port}' if port else ''}{path}"


def _holds_raw_password(parts: SplitResult) -> bool:
    """Tell whether the URL was cut within a password, at a '/', '?' or '#' that was not escaped."""
    if parts.scheme == "unix" and not parts.netloc:
        return False
    return "@" in parts.path or "@" in parts.fragment or "@" in parts.query.partition("=")[0]


def _check_options(scheme: str, options: dict[str, str]) -> None:
    known = COMMON_OPTIONS | (TLS_OPTIONS if scheme == "rediss" else frozenset())
    for name, value in options.items():
        if name not in known:
            hint = "; it goes with rediss://" if name in TLS_OPTIONS else f"; known are {', '.join(sorted(known))}"
            raise _fault(f"option {name!r} in its query is unknown{hint}" if name.isidentifier() else "has a bad query")
        if name in TLS_FILES and not os.access(value, os.R_OK):
            raise _fault(f"option {name}: cannot read {value}")
    if options.get("ssl_cert_reqs", CERT_REQUIREMENTS[0]) not in CERT_REQUIREMENTS:
        raise _fault(f"option ssl_cert_reqs: must be one of {', '.join(CERT_REQUIREMENTS)}")


def _fault(message: str) -> ConfigurationError:
    return ConfigurationError(f"redis_url: {message}")
