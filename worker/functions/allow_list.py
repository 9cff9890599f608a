"""Plain functions that a worker runs beside prompt jobs: which ones, decided by name before anything is imported.

A record names its function and its callbacks, so whoever can write to Redis chooses the names. A name that the
allow-list does not know is never imported; one that it knows by its module must lead to something defined there.
"""

import re
from dataclasses import dataclass

from worker.errors import PagemillError

ENTRY_PATTERN = re.compile(r"([A-Za-z_]\w*\.)+([A-Za-z_]\w*|\*)", re.ASCII)
_NAME = re.compile(r"([A-Za-z]\w*\.)+[A-Za-z]\w*", re.ASCII)  # under a module: nothing private


class FunctionRefused(PagemillError):
    """A function or callback that this worker may not run."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """Names of functions ("shop.tasks.invoice"), and modules whose functions may all be run ("shop.tasks.*")."""

    entries: tuple[str, ...] = ()

    def allows(self, name: object) -> bool:
        """Tell whether a record may name this function; whether it leads where it seems to is `resolve`'s to say."""
        return isinstance(name, str) and (name in self.entries or self._module_of(name) is not None)

    def check(self, name: object) -> None:
        """Raise FunctionRefused for a name that is not allowed."""
        if not self.allows(name):
            raise FunctionRefused(f"{name!r} is not among the functions that this worker may run (setting functions)")

    def check_function(self, name: str, function: object) -> None:
        """Raise FunctionRefused for a function that a module allows by name but does not define, as what it imports."""
        if name in self.entries:
            return
        module, home = self._module_of(name), getattr(function, "__module__", None)
        if module is None or not isinstance(home, str) or not f"{home}.".startswith(f"{module}."):
            raise FunctionRefused(f"{name!r} is not defined in {module}, whose functions this worker may run")

    def _module_of(self, name: str) -> str | None:
        if not _NAME.fullmatch(name):
            return None
        modules = (entry.removesuffix(".*") for entry in self.entries if entry.endswith(".*"))
        return next((module for module in modules if name.startswith(f"{module}.")), None)


NO_FUNCTIONS = AllowList()
