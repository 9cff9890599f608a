"""Packages that only some installations have."""

import importlib
from importlib.util import find_spec
from types import ModuleType

from worker.errors import ConfigurationError


def require_extra(package: str, purpose: str, *, extra: str = "engine") -> None:
    """Raise ConfigurationError when a package of an extra is missing; `purpose` begins the message."""
    if not _is_installed(package):
        raise ConfigurationError(f"{purpose} needs the {package} package: pip install 'pagemill[{extra}]'")


def import_extra(package: str, purpose: str, *, extra: str = "engine") -> ModuleType:
    """Import a package of an extra, or raise ConfigurationError as `require_extra` does."""
    require_extra(package, purpose, extra=extra)
    return importlib.import_module(package)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # not even what it is in
        return False
