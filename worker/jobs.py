"""The prompt job: the one payload Pagemill accepts, schema-versioned, typed and size-capped.

A producer needs none of this module: a plain JSON object enqueued under `FUNCTION_NAME` is a job. Producers that do
use it get their errors before Redis; the worker validates every record with it again.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from engine.limits import MAX_LOGIT_BIAS, MAX_PENALTY, MAX_TOP_LOGPROBS
from worker.errors import InvalidJob
from worker.output_format import GrammarText, ResponseFormat, TextFormat
from worker.storable import ESCAPED_NUL, holds_surrogate, nul_field
from worker.tools import MAX_TOOLS, Message, Tool, ToolChoice, check_choice, is_forced_choice

FUNCTION_NAME = "pagemill.prompt"  # the only function name a queue record may carry
SCHEMA_VERSION = 1
DEFAULT_TENANT = "default"
MAX_PAYLOAD_BYTES = 1_048_576  # a record's UTF-8 JSON, before RQ compresses it
MAX_OUTPUT_TOKENS = 1_000_000
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_TOKEN_ID = 2**31 - 1
MAX_BIASED_TOKENS = 300
MAX_BATCH_SIZE = 1_000_000_000
MAX_METADATA_ENTRIES = 16
MAX_SEED = 2**63 - 1
MAX_RETRIES = 20
MAX_INPUTS = 64
MAX_OUTPUTS = 16  # of one prompt; the engine's limit too

_PLAIN_NAME = re.compile(r"[\w\[\]-]{1,64}", re.ASCII)

IDENTIFIER = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"  # of a tenant or a batch
Identifier = Annotated[str, Field(min_length=1, max_length=128, pattern=f"^{IDENTIFIER}$")]

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
TokenKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]  # a token id as the key of a JSON object
Penalty = Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS, allow_inf_nan=False)]


class PromptJob(BaseModel):
    """One prompt and how to answer it. Exactly one of `prompt` and `messages` is given.

    `prompt` becomes a user turn of the model's chat template unless `raw` is set, which sends its text as it is.
    Tenants share no prefix cache, because its timing tells what is in it. A job that sets `share_prefix` gives that up:
    it reads and fills the one cache of all jobs that set it. `temperature` 0 is greedy. `seed` None derives a seed from
    the job id, so a second attempt repeats the first. Penalties and biases have OpenAI's meaning, `repetition_penalty`
    Hugging Face's. At most one of `response_format`, `regex` and `grammar` confines the output.
    `max_retries` None leaves it to RQ's Retry, if the job was enqueued with one, and to the worker's default.
    The model is told of `tools` and may call them: `tool_choice` None is auto, with none it hears nothing of them, and
    with required or a function's name its output is a call. Outputs that call end as `tool_calls`.
    A job that has not ended by its `deadline` fails then, its output so far kept.
    `max_tokens` None is as much as fits: what the prompt leaves of the worker's context.
    `n` outputs are generated from the one prompt, each with a seed of its own; with `best_of`, so many are, and the `n`
    whose tokens were likeliest on average are kept, the best first.
    `prompt_logprobs` asks for the log-probabilities of the prompt's tokens, with so many of the likeliest at each
    place; such a prompt is computed anew, whatever of it is cached. `echo` puts the prompt before each output that a
    producer gets. `return_token_ids` gives those of the prompt too.
    `inputs` are the ids of other jobs of its tenant, which it waits for: the output of each takes the place of the text
    `{output:ID}` in the prompt or the messages.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1] = 1
    prompt: str | None = None
    messages: tuple[Message, ...] | None = Field(default=None, min_length=1, max_length=1024, fail_fast=True)
    system: str | None = Field(default=None, min_length=1)
    raw: bool = False
    model: str | None = Field(default=None, min_length=1, max_length=512)
    tenant: Identifier = DEFAULT_TENANT
    share_prefix: bool = False
    batch_id: Identifier | None = None
    batch_size: int | None = Field(default=None, ge=1, le=MAX_BATCH_SIZE)
    custom_id: str | None = Field(default=None, min_length=1, max_length=256)
    metadata: dict[str, str] = Field(default_factory=dict, max_length=MAX_METADATA_ENTRIES)
    max_tokens: int | None = Field(default=256, ge=1, le=MAX_OUTPUT_TOKENS)
    min_tokens: int = Field(default=0, ge=0, le=MAX_OUTPUT_TOKENS)
    temperature: float = Field(default=0.0, ge=0.0, le=2.0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0, le=1_000_000)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, allow_inf_nan=False)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, allow_inf_nan=False)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=MAX_PENALTY, allow_inf_nan=False)
    logit_bias: dict[TokenKey, Bias] = Field(default_factory=dict, max_length=MAX_BIASED_TOKENS)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    stop: tuple[StopString, ...] = Field(default=(), max_length=MAX_STOP_STRINGS, fail_fast=True)
    stop_token_ids: tuple[TokenId, ...] = Field(default=(), max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)
    return_token_ids: bool = False
    n: int = Field(default=1, ge=1, le=MAX_OUTPUTS)
    best_of: int | None = Field(default=None, ge=1, le=MAX_OUTPUTS)
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool = False
    response_format: ResponseFormat | None = None
    regex: GrammarText | None = None
    grammar: GrammarText | None = None  # llguidance's kind of Lark
    tools: tuple[Tool, ...] = Field(default=(), max_length=MAX_TOOLS, fail_fast=True)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_retries: int | None = Field(default=None, ge=0, le=MAX_RETRIES)
    deadline: AwareDatetime | None = None  # UTC
    inputs: tuple[Identifier, ...] = Field(default=(), max_length=MAX_INPUTS, fail_fast=True)

    @field_validator("metadata", mode="after")
    @classmethod
    def _metadata_is_short(cls, value: dict[str, str]) -> dict[str, str]:
        for text in (*value.keys(), *value.values()):
            if len(text) > 512:
                raise ValueError(f"keys and values may have at most 512 characters, one has {len(text)}")
        return value

    @field_validator("deadline", mode="before")
    @classmethod
    def _deadline_is_iso_8601(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("is not an ISO 8601 time with a zone, such as 2026-12-01T06:00:00Z") from None

    @field_validator("deadline", mode="after")
    @classmethod
    def _deadline_is_in_utc(cls, value: datetime | None) -> datetime | None:
        try:
            return None if value is None else value.astimezone(UTC)
        except OverflowError:
            raise ValueError("is not within the years 1 to 9999 in UTC") from None

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages must be given")
        if self.prompt is not None and not self.prompt.strip():
            raise ValueError("prompt is empty; it needs at least one character that is not white space")
        if self.raw and (self.messages is not None or self.system is not None):
            raise ValueError("raw takes a prompt only: messages and system need the chat template")
        if self.messages is not None and self.system is not None:
            raise ValueError("system goes with prompt; give it as the first of messages instead")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs {self.top_logprobs} needs logprobs to be true")
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of {self.best_of} is below n, which is {self.n}")
        if self.echo and (not self.raw or self.inputs):
            other = "inputs, which its prompt takes in" if self.raw else "a chat template"
            raise ValueError(f"echo gives back a raw prompt as it was sent; this job has {other}")
        return self

    @model_validator(mode="after")
    def _grammar_can_be_followed(self) -> Self:
        given = [name for name in ("response_format", "regex", "grammar") if self._confines(name)]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} cannot both confine an output")
        if given and (self.ignore_eos or self.min_tokens):
            other = "ignore_eos" if self.ignore_eos else "min_tokens"
            raise ValueError(f"{other} cannot be kept with {given[0]}, which decides where an output ends")
        return self

    @model_validator(mode="after")
    def _tools_agree(self) -> Self:
        check_choice(self.tools, self.tool_choice, parallel=self.parallel_tool_calls)
        if self.raw and self.tools:
            raise ValueError("raw takes a prompt only: tools need the chat template")
        form = next((name for name in ("response_format", "regex", "grammar") if self._confines(name)), None)
        if form is not None and self.offered_tools:
            raise ValueError(f"{form} and tools cannot both say what an output is; tool_choice none goes with it")
        if self.must_call and (self.ignore_eos or self.min_tokens):
            other = "ignore_eos" if self.ignore_eos else "min_tokens"
            raise ValueError(f"{other} cannot be kept with tool_choice, which decides where an output ends")
        return self

    def _confines(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and not isinstance(value, TextFormat)

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """The tools that the model is told of."""
        return () if self.tool_choice == "none" else self.tools

    @property
    def must_call(self) -> bool:
        """Whether the output has to be a call of a tool."""
        return is_forced_choice(self.tool_choice)

    @model_validator(mode="after")
    def _inputs_are_used(self) -> Self:
        texts = (self.prompt or "", *(message.text for message in self.messages or ()))
        for job_id in self.inputs:
            if not any(output_marker(job_id) in text for text in texts):
                raise ValueError(f"inputs names the job {job_id}, but no text says {output_marker(job_id)}")
        return self


def num_outputs(job: PromptJob) -> int:
    """Return how many outputs are generated for a job."""
    return job.n if job.best_of is None else job.best_of


def output_marker(job_id: str) -> str:
    """Return the text that a job's output takes the place of, in a job that has it among its inputs."""
    return f"{{output:{job_id}}}"


def seed_of(job: PromptJob, job_id: str) -> int:
    """Return the seed that every attempt at a job samples with."""
    if job.seed is not None:
        return job.seed
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8], "big") >> 1


def parse_job(payload: Mapping[str, Any]) -> PromptJob:
    """Return the typed job, or raise InvalidJob naming the first field at fault, its value and the limit."""
    try:
        # The JSON mode accepts arrays where the model has tuples; a NaN travels as NaN and is refused by its field.
        return PromptJob.model_validate_json(_dump(payload))
    except ValidationError as error:
        raise _invalid(error) from None


def dump_job(job: PromptJob) -> dict[str, Any]:
    """Return the JSON object of a job, defaults left out, checked against `MAX_PAYLOAD_BYTES`."""
    payload = {"schema_version": SCHEMA_VERSION, **job.model_dump(mode="json", exclude_defaults=True)}
    _dump(payload)
    return payload


def _dump(payload: Mapping[str, Any]) -> bytes:
    try:
        data = _encode(payload)
    except UnicodeEncodeError:
        raise InvalidJob(_field_with_surrogate(payload), "holds a lone surrogate; it is not valid Unicode") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob("payload", f"is not a JSON object: {error}") from None
    if ESCAPED_NUL in data and (nul := nul_field(payload)) is not None:
        name, place = nul
        raise InvalidJob(_field_name(name), f"holds a NUL character at position {place}, which SQL text cannot store")
    if len(data) > MAX_PAYLOAD_BYTES:
        raise InvalidJob("payload", f"has {len(data)} bytes; at most {MAX_PAYLOAD_BYTES} are accepted")
    return data


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=_encode_time).encode()


def _encode_time(value: object) -> str:
    """Let a deadline be given as Python's own kind of time."""
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _field_with_surrogate(payload: Mapping[str, Any]) -> str:
    return next((_field_name(name) for name, value in payload.items() if holds_surrogate(value)), "payload")


def _field_name(name: str) -> str:
    return name if name in PromptJob.model_fields else "payload"


def _invalid(error: ValidationError) -> InvalidJob:
    first = error.errors(include_url=False)[0]
    loc = list(first["loc"])
    if loc[:1] == ["response_format"]:
        del loc[1:2]  # which of the forms pydantic took it for
    field = ".".join(_plain(str(part)) for part in loc)
    message = first["msg"].removeprefix("Value error, ")
    if not field:
        name, _, rest = message.partition(" ")
        field, message = (name, rest) if name in PromptJob.model_fields else ("payload", message)
    elif first["type"] == "value_error" and loc[0] == "messages" and message.partition(" ")[0] in Message.model_fields:
        name, _, message = message.partition(" ")
        field = f"{field}.{name}"
    elif first["type"] == "extra_forbidden":
        message = f"unknown field; the fields are {', '.join(PromptJob.model_fields)}"
    else:
        message = f"{message}, got {shorten(first['input'])}"
    return InvalidJob(field, message)


def _plain(name: str) -> str:
    """Return a name as it may stand in a log: a producer may have put anything in its place."""
    return name if _PLAIN_NAME.fullmatch(name) else shorten(name)


def shorten(value: object) -> str:
    """Return a value that somebody gave, short enough for a message."""
    text = "NaN" if isinstance(value, float) and math.isnan(value) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
