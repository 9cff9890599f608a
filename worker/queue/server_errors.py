"""What the error replies of Redis and Valkey mean to a user.

Both begin a reply with a code. redis-py cuts it off the codes that it has a class for and leaves it in the text of the
others; a pipeline puts the command before the text, arguments and all, which must not reach a log.
"""

import re

import redis
from redis import exceptions

from worker.errors import PagemillError, ServiceUnavailable, TryLater

CODES_OF_CLASSES: tuple[tuple[type[redis.RedisError], str], ...] = (  # the first that fits
    (exceptions.AuthenticationError, "WRONGPASS"),
    (exceptions.AuthorizationError, "NOPERM"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.NoScriptError, "NOSCRIPT"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.AskError, "MOVED"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
    (exceptions.ExecAbortError, "EXECABORT"),
)
NOT_A_CLUSTER = "is a cluster, which cannot hold the queue: its scripts need all keys on one server"
PASSES_BY_ITSELF = {
    "BUSY": "is busy with a script; try again in a moment",
    "CLUSTERDOWN": "has lost a part of its cluster; try again in a moment",
    "EXECABORT": "gave up a transaction; try again in a moment",
    "LOADING": "is loading its data; try again in a moment",
    "MASTERDOWN": "has lost its primary; try again in a moment",
    "MISCONF": "cannot write to its disk and refuses changes",
    "NOREPLICAS": "has too few replicas and refuses changes; try again in a moment",
    "NOSCRIPT": "has lost its scripts; try again in a moment",
    "OOM": "is full (maxmemory); try again when the workers have drained it",
    "TRYAGAIN": "is moving keys between its nodes; try again in a moment",
    "UNKILLABLE": "is busy with a script that has written; try again in a moment",
}
NEEDS_SOMEBODY = {
    "CROSSSLOT": NOT_A_CLUSTER,
    "DENIED": "is in protected mode and takes connections from its own machine only",
    "MOVED": NOT_A_CLUSTER,
    "NOAUTH": "asks for a password",
    "NOPROTO": "does not speak Redis's protocol in version 2",
    "READONLY": "is a read-only replica",
    "WRONGPASS": "asks for a password, or refuses the user name or password",
}
BY_TEXT = {  # replies whose code says no more than ERR
    "max number of clients reached": "has all the clients that it takes (maxclients); try again later",
    "Script killed by user": "was told to stop a script; try again in a moment",
}

_IN_PIPELINE = " of pipeline caused error: "
_REFUSED_COMMAND = re.compile(r"no permissions to run the '([a-z0-9|_.-]{1,64})' command")
_REFUSED_IN_SCRIPT = re.compile(r"ACL failure in script|The user executing the script can't ")
_SCRIPT_LINE = re.compile(r"on @user_script:(\d{1,6})\.")


def as_pagemill_error(error: redis.RedisError, address: str) -> PagemillError | None:
    """Return the one-line error that stands for a server's reply: TryLater for what passes by itself,
    ServiceUnavailable for what somebody has to mend. None for a fault of ours, or of a key that holds what it should
    not."""
    text = str(error).rpartition(_IN_PIPELINE)[2]
    code = _code(error, text)
    if code == "NOPERM" or _REFUSED_IN_SCRIPT.match(text):
        return ServiceUnavailable(f"{address} does not let this user {_refused(text)}; its ACL is too narrow")
    for known, words in BY_TEXT.items():
        if text.startswith(known):
            return TryLater(f"{address} {words}")
    if code in PASSES_BY_ITSELF:
        return TryLater(f"{address} {PASSES_BY_ITSELF[code]}")
    if code in NEEDS_SOMEBODY:
        return ServiceUnavailable(f"{address} {NEEDS_SOMEBODY[code]}")
    return None


def refused_script_line(error: redis.RedisError) -> int | None:
    """Return the number of the line at which the server's ACL stopped a script, the first being 1; None where it was
    not the ACL."""
    text = str(error)
    line = _SCRIPT_LINE.search(text) if _REFUSED_IN_SCRIPT.match(text) else None
    return int(line[1]) if line else None


def reply_code(error: redis.RedisError) -> str:
    """Return the code with which the server's reply began, such as WRONGTYPE; else ERR."""
    code = _code(error, str(error).rpartition(_IN_PIPELINE)[2])
    return code if code.isupper() else "ERR"


def _code(error: redis.RedisError, text: str) -> str:
    for kind, code in CODES_OF_CLASSES:
        if isinstance(error, kind):
            return code
    return text.partition(" ")[0]


def _refused(text: str) -> str:
    """Return what a user may not do, without the user's name, which the text may hold."""
    command = _REFUSED_COMMAND.search(text)
    if command is not None:
        return f"run {command[1].replace('|', ' ').upper()}"
    return "use a channel that this needs" if "channel" in text else "use a key or a command that this needs"
