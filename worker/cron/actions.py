"""What a schedule does when it fires, as JSON in SQL and checked on its way in."""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from worker.cron.records import RunKind
from worker.errors import InvalidJob, PagemillError
from worker.jobs import IDENTIFIER, MAX_OUTPUT_TOKENS
from worker.queue.submission import valid_payload
from worker.rag.prompts import DEFAULT_INSTRUCTIONS, DEFAULT_MAX_TOKENS, SummaryPrompt

RESERVED = ("batch_id", "batch_size", "deadline", "tenant")  # fields of a job that the schedule or the run settles
LONGEST_DEADLINE_SECONDS = 366 * 86_400.0
NAME = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}"
STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
ID_CHARACTERS = 32  # as many as RQ's own ids have


def _is_absolute(path: str) -> str:
    if not Path(path).is_absolute() or "\x00" in path:
        raise ValueError("must be absolute: it is read by whichever scheduler leads")
    return path


AbsolutePath = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_is_absolute)]
# Time that jobs have, from the moment at which the run was opened.
DeadlineSeconds = Annotated[float, Field(gt=0.0, le=LONGEST_DEADLINE_SECONDS, allow_inf_nan=False)] | None


class ActionKind(StrEnum):
    """What an action submits."""

    PROMPT = "prompt"
    JSONL = "jsonl"
    BATCH = "batch"
    RAG = "rag"


class PromptAction(BaseModel):
    """One prompt. `job` holds the fields of its job."""

    model_config = STRICT

    kind: Literal[ActionKind.PROMPT] = ActionKind.PROMPT
    job: dict[str, Any]
    deadline_seconds: DeadlineSeconds = None

    @field_validator("job")
    @classmethod
    def _is_a_job(cls, job: dict[str, Any]) -> dict[str, Any]:
        _check_free(job)
        valid_payload(job)
        return job


class JsonlAction(BaseModel):
    """The jobs of a file, one a line, as they are when the schedule fires. `defaults` are fields that it may set."""

    model_config = STRICT

    kind: Literal[ActionKind.JSONL] = ActionKind.JSONL
    path: AbsolutePath
    defaults: dict[str, Any] = Field(default_factory=dict)
    deadline_seconds: DeadlineSeconds = None

    @field_validator("defaults")
    @classmethod
    def _go_with_a_prompt(cls, defaults: dict[str, Any]) -> dict[str, Any]:
        _check_free(defaults)
        valid_payload({"prompt": "?", **defaults})
        return defaults


class BatchAction(BaseModel):
    """A file of requests in OpenAI's batch format, as it is when the schedule fires. `max_tokens` holds for requests
    that do not say; `model` answers all of them."""

    model_config = STRICT

    kind: Literal[ActionKind.BATCH] = ActionKind.BATCH
    path: AbsolutePath
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_OUTPUT_TOKENS)
    model: str | None = Field(default=None, min_length=1, max_length=512)
    deadline_seconds: DeadlineSeconds = None


class RagAction(BaseModel):
    """The summaries that a collection of documents lacks. `index` has its source read again first."""

    model_config = STRICT

    kind: Literal[ActionKind.RAG] = ActionKind.RAG
    collection: str = Field(pattern=f"^{IDENTIFIER}$")
    index: bool = False
    instructions: str = DEFAULT_INSTRUCTIONS
    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    model: str | None = Field(default=None, min_length=1, max_length=512)

    @property
    def prompt(self) -> SummaryPrompt:
        return SummaryPrompt(self.instructions, self.max_tokens, self.temperature)

    @model_validator(mode="after")
    def _makes_a_prompt(self) -> Self:
        SummaryPrompt(self.instructions, self.max_tokens, self.temperature)
        return self


Action = PromptAction | JsonlAction | BatchAction | RagAction
_READER: TypeAdapter[Action] = TypeAdapter(Annotated[Action, Field(discriminator="kind")])


def parse_action(text: str) -> Action:
    """Return the action of a schedule in SQL. Raises PagemillError for one that this version does not know."""
    try:
        return _READER.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "action"
        raise PagemillError(f"action: {field}: {first['msg'].removeprefix('Value error, ')}") from None


def make_action(kind: ActionKind, **fields: Any) -> Action:
    """Return a new action. Raises PagemillError or InvalidJob, which name the field and the reason."""
    return parse_action(json.dumps({"kind": kind, **fields}))


def check_name(name: str) -> str:
    """Return the name of a schedule, which is a part of its batches' names. Raises PagemillError."""
    if not re.fullmatch(NAME, name, re.ASCII):
        raise PagemillError(f"name: {ascii(name)[:80]} is none: up to 64 letters, digits, '.', '_', ':' and '-'")
    return name


def dump_action(action: Action) -> str:
    """Return the JSON of an action."""
    return action.model_dump_json(exclude_none=True)


def run_id(schedule_id: str, kind: RunKind, slot_at: datetime) -> str:
    """Return the id of the run of a slot: the same whoever asks."""
    return _digest(schedule_id, kind, slot_at.isoformat())


def job_id(of_run: str, index: int) -> str:
    """Return the id of a run's job, counted from 0."""
    return _digest(of_run, str(index))


def batch_name(schedule_name: str, kind: RunKind, slot_at: datetime) -> str:
    """Return the name of the batch that a run's jobs are, which people read in reports."""
    if kind is RunKind.SLOT:
        return f"{schedule_name}.{slot_at:%Y%m%dT%H%MZ}"
    return f"{schedule_name}.manual.{slot_at:%Y%m%dT%H%M%S.%fZ}"


def check_line(place: str | None, fields: Mapping[str, Any]) -> None:
    """Raise InvalidJob for a line of a file that sets what its run settles."""
    for name in ("batch_id", "batch_size"):
        if name in fields:
            where = f"{place}: " if place else ""
            raise InvalidJob(f"{where}{name}", "is the run's own; leave it out")


def _check_free(fields: Mapping[str, Any]) -> None:
    for name in RESERVED:
        if name in fields:
            raise ValueError(f"{name} is settled by the schedule; leave it out of the job")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:ID_CHARACTERS]
