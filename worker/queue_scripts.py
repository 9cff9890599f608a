"""The Lua scripts of the queue protocol, loaded from `worker/lua` and bound to a connection."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import redis
from redis.exceptions import ResponseError
from rq.defaults import RQ_KEY_PREFIX

from worker.connection import redis_errors
from worker.errors import ConfigurationError

SCRIPT_NAMES = (
    *("claim", "recover", "extend", "acknowledge", "requeue", "sweep", "dead_letter"),
    *("cancel", "mark", "marked"),
)
INCLUDES = {"claim": ("taking",)}  # besides common.lua

Argument = str | int | float | bytes


def load_script(name: str) -> str:
    """Return a script's source: its first line (the engine's flags), what all scripts share, its includes, its body."""
    folder = files("worker") / "lua"
    flags, body = (folder / f"{name}.lua").read_text("utf-8").split("\n", 1)
    shared = [(folder / f"{part}.lua").read_text("utf-8") for part in ("common", *INCLUDES.get(name, ()))]
    return "\n".join((flags, *shared, body))


class QueueScripts:
    """Calls the scripts, each one round trip and atomic. Errors are those of `redis_errors`, and
    ConfigurationError for a server too old to run them."""

    def __init__(self, connection: redis.Redis) -> None:
        self._scripts = {name: connection.register_script(load_script(name)) for name in SCRIPT_NAMES}

    def call(self, name: str, arguments: Sequence[Argument]) -> Any:
        """Run a script with RQ's key prefix put before its arguments."""
        try:
            with redis_errors():
                return self._scripts[name](args=[RQ_KEY_PREFIX, *arguments])
        except ResponseError as error:
            if "compiling script" in str(error):
                raise ConfigurationError(
                    "redis_url: the server is too old; Redis 7.0 or Valkey 7.2 is needed"
                ) from None
            raise
