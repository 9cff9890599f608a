"""Errors a user can cause, each with the exit code of the command that meets it."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command (sysexits.h where one exists)."""

    OK = 0
    JOBS_FAILED = 1
    USAGE = 2
    UNAVAILABLE = 69
    TRY_LATER = 75
    CONFIGURATION = 78


class PagemillError(Exception):
    """One line for the user; never a traceback."""

    exit_code: ExitCode = ExitCode.USAGE


class InvalidJob(PagemillError):
    """A prompt job that breaks a rule: names the field, the value's problem and the limit."""

    def __init__(self, field: str, message: str, *, code: str = "invalid_job") -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.code = code


class ServiceUnavailable(PagemillError):
    """Redis or the database cannot be reached."""

    exit_code = ExitCode.UNAVAILABLE


class TryLater(PagemillError):
    """The service answers but cannot take the request now (a full Redis, say)."""

    exit_code = ExitCode.TRY_LATER


class ConfigurationError(PagemillError):
    """A setting is unknown, malformed or contradicts another."""

    exit_code = ExitCode.CONFIGURATION
