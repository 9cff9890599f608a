"""What an error means for its job: every error code has one class, and the class says whether the job runs again."""

from collections.abc import Mapping
from enum import StrEnum


class ErrorClass(StrEnum):
    """Whose fault an error is, as far as running the job again goes."""

    INFRASTRUCTURE = "infrastructure"  # the worker's or the device's: the job runs again, and spends no retry
    TRANSIENT = "transient"  # another attempt may do better: up to the job's retries
    PERMANENT = "permanent"  # the job's own: every attempt would end so


ERROR_CLASSES: Mapping[str, ErrorClass] = {
    "lease_lost": ErrorClass.INFRASTRUCTURE,
    "fenced": ErrorClass.INFRASTRUCTURE,
    "queue_lost": ErrorClass.INFRASTRUCTURE,
    "inputs_pending": ErrorClass.INFRASTRUCTURE,
    "internal_error": ErrorClass.TRANSIENT,
    "numerical_error": ErrorClass.TRANSIENT,
    "duplicate_request": ErrorClass.TRANSIENT,
    "step_failed": ErrorClass.TRANSIENT,
    "invalid_job": ErrorClass.PERMANENT,
    "invalid_parameter": ErrorClass.PERMANENT,
    "invalid_token": ErrorClass.PERMANENT,
    "empty_prompt": ErrorClass.PERMANENT,
    "context_length": ErrorClass.PERMANENT,
    "kv_capacity": ErrorClass.PERMANENT,
    "out_of_memory": ErrorClass.PERMANENT,  # with the device to itself
    "deadline_exceeded": ErrorClass.PERMANENT,
    "model_not_served": ErrorClass.PERMANENT,
    "input_failed": ErrorClass.PERMANENT,
    "grammar_failed": ErrorClass.PERMANENT,
    "result_refused": ErrorClass.PERMANENT,  # SQL takes anything else, so it would refuse the same output again
    "poison": ErrorClass.PERMANENT,  # it ends worker processes
    "corrupt_record": ErrorClass.PERMANENT,
    "pickled_record": ErrorClass.PERMANENT,
    "wrong_function": ErrorClass.PERMANENT,
    "wrong_arguments": ErrorClass.PERMANENT,
    "dead_lettered": ErrorClass.PERMANENT,
}


def classify(code: str) -> ErrorClass:
    """Return the class of an error code; one that is not in the table may pass, as far as anybody knows."""
    return ERROR_CLASSES.get(code, ErrorClass.TRANSIENT)
