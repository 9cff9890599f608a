"""The Lua scripts of the queue protocol, loaded from `worker/queue/lua` and bound to a connection."""

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import redis
from redis.exceptions import ResponseError
from rq.defaults import RQ_KEY_PREFIX

from worker.errors import ConfigurationError, ServiceUnavailable
from worker.queue.connection import redis_errors
from worker.queue.server_errors import refused_script_line

SCRIPT_NAMES = (
    *("claim", "recover", "extend", "acknowledge", "requeue", "sweep", "dead_letter"),
    *("enqueue", "delay", "enqueue_due", "cancel", "mark", "marked"),
    *("locate", "strays", "adopt", "reconcile_due", "permissions"),
    *("tell", "limit", "tenants"),
    *("abandon", "absolve", "claim_suspects", "seek_duty", "keep_duty"),
)
INCLUDES = {  # besides common.lua
    "claim": ("taking", "limiting"),
    "claim_suspects": ("taking", "limiting"),
    "tell": ("limiting",),
    "limit": ("limiting",),
    "tenants": ("limiting",),
    "abandon": ("suspecting",),
    "sweep": ("suspecting",),
    "absolve": ("suspecting",),
}

_CALL = re.compile(r"call\('([A-Z]+)'(?:, '([A-Z]+)')?")

Argument = str | int | float | bytes


def load_script(name: str) -> str:
    """Return a script's source: its first line (the engine's flags), what all scripts share, its includes, its body."""
    folder = files("worker.queue") / "lua"
    flags, body = (folder / f"{name}.lua").read_text("utf-8").split("\n", 1)
    shared = [(folder / f"{part}.lua").read_text("utf-8") for part in ("common", *INCLUDES.get(name, ()))]
    return "\n".join((flags, *shared, body))


def script_commands() -> tuple[str, ...]:
    """Return the commands that the scripts call, each once, with its subcommand where it has one."""
    found = {call for name in SCRIPT_NAMES for call in _CALL.findall(load_script(name))}
    return tuple(sorted(" ".join(filter(None, call)) for call in found))


class QueueScripts:
    """Calls the scripts, each one round trip and atomic. Errors are those of `redis_errors`, and
    ConfigurationError for a server too old to run them."""

    def __init__(self, connection: redis.Redis) -> None:
        self._scripts = {name: connection.register_script(load_script(name)) for name in SCRIPT_NAMES}

    def call(self, name: str, arguments: Sequence[Argument]) -> Any:
        """Run a script with RQ's key prefix put before its arguments."""
        try:
            with redis_errors():
                return self._run(name, arguments)
        except ResponseError as error:
            if "compiling script" in str(error):
                raise ConfigurationError(
                    "redis_url: the server is too old; Redis 7.0 or Valkey 7.2 is needed"
                ) from None
            raise

    def _run(self, name: str, arguments: Sequence[Argument]) -> Any:
        try:
            return self._scripts[name](args=[RQ_KEY_PREFIX, *arguments])
        except ResponseError as error:
            line = refused_script_line(error)
            if line is None:
                raise
            refused = f"{_command_at(name, line)} in the script {name}, or touch its key"
            raise ServiceUnavailable(f"Redis does not let this user run {refused}; its ACL is too narrow") from None


def _command_at(name: str, line: int) -> str:
    """Return the command that a script calls in one of its lines, or the ones of which it must be one."""
    source = load_script(name).split("\n")[line - 1 : line]
    called = [" ".join(filter(None, call)) for call in _CALL.findall("".join(source))]
    return " or ".join(called) or "a command"
