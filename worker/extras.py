"""Packages that only some installations have."""

import importlib
from importlib.util import find_spec
from types import ModuleType

from worker.errors import ConfigurationError


def require_extra(package: str, purpose: str) -> None:
    """Raise ConfigurationError when a package of the `engine` extra is missing; `purpose` begins the message."""
    if find_spec(package) is None:
        raise ConfigurationError(f"{purpose} needs the {package} package: pip install 'pagemill[engine]'")


def import_extra(package: str, purpose: str) -> ModuleType:
    """Import a package of the `engine` extra, or raise ConfigurationError as `require_extra` does."""
    require_extra(package, purpose)
    return importlib.import_module(package)
