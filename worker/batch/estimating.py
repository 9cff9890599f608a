"""What a file would take: prompt tokens by the model's own tokenizer where that is at hand, time by how fast jobs were
of late.
"""

import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from worker.batch.lines import RequestLine
from worker.batch.records import LineFault
from worker.errors import InvalidJob, PagemillError
from worker.jobs import PromptJob, parse_job
from worker.model_shape import locate_model, read_shape
from worker.openai_api.errors import CONTEXT_LENGTH_EXCEEDED, INVALID_VALUE
from worker.records import JobState
from worker.settings_model import Settings
from worker.sql.database import reading
from worker.sql.tables import JobRow, ResultRow

BYTES_PER_TOKEN = 4  # of prose, about: where no tokenizer is at hand
RECENT_JOBS = 1_000

Encode = Callable[[PromptJob], list[int]]


@dataclass(frozen=True, slots=True)
class Throughput:
    """How fast recent jobs were: tokens of prompts and outputs in a second in which any ran."""

    jobs: int
    tokens_per_second: float
    mean_output_tokens: float


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts a prompt's tokens: exactly, or by its length where `encode` is None."""

    described: str  # for a person
    encode: Encode | None = None
    context: int | None = None  # tokens, prompt and output together


@dataclass(slots=True)
class Estimate:
    """What the good lines of a file would take, so far."""

    counter: TokenCounter
    recent: Throughput | None
    requests: int = 0
    prompt_tokens: int = 0
    most_output_tokens: int | None = 0  # None once a request may fill the context
    likely_output_tokens: float = 0.0

    @property
    def seconds(self) -> float | None:
        """How long it would take; None where no job tells how fast that is."""
        if self.recent is None:
            return None
        return (self.prompt_tokens + self.likely_output_tokens) / self.recent.tokens_per_second

    def take(self, line: RequestLine) -> LineFault | None:
        """Count a request, or say why its prompt does not fit."""
        try:
            prompt_tokens = self._prompt_tokens(line.payload)
        except InvalidJob as error:  # the model's chat template refuses it
            return LineFault(line.line, line.custom_id, str(error), INVALID_VALUE, error.field)
        max_tokens = line.payload.get("max_tokens", PromptJob.model_fields["max_tokens"].default)
        context = self.counter.context
        if self.counter.encode is not None and context is not None and prompt_tokens + (max_tokens or 1) > context:
            asked = "" if max_tokens is None else f", and asks for {max_tokens} more"
            message = f"the prompt has {prompt_tokens} tokens{asked}; the context has {context}"
            return LineFault(line.line, line.custom_id, message, CONTEXT_LENGTH_EXCEEDED)
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        if self.most_output_tokens is not None:
            self.most_output_tokens = None if max_tokens is None else self.most_output_tokens + max_tokens
        if self.recent is not None:
            mean = self.recent.mean_output_tokens
            self.likely_output_tokens += mean if max_tokens is None else min(mean, max_tokens)
        return None

    def _prompt_tokens(self, payload: Mapping[str, Any]) -> int:
        if self.counter.encode is not None:
            return len(self.counter.encode(parse_job(payload)))
        return -(-sum(len(text.encode()) for text in _texts_of(payload)) // BYTES_PER_TOKEN)


def _texts_of(payload: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a chat template makes a prompt of: texts, calls of tools, and the tools that the model is told of."""
    yield payload.get("prompt", "")
    for message in payload.get("messages", ()):
        yield message.get("content") or ""
        if message.get("tool_calls"):
            yield json.dumps(message["tool_calls"], ensure_ascii=False)
    if payload.get("tools") and payload.get("tool_choice") != "none":
        yield json.dumps(payload["tools"], ensure_ascii=False)


def token_counter(settings: Settings) -> TokenCounter:
    """Return a counter by the tokenizer of the configured model, if that and its packages are on this machine."""
    folder = None if settings.model is None else _tokenizer_folder(settings.model, settings.data_dir / "models")
    if folder is None:
        reason = "no model is set" if settings.model is None else f"{settings.model} has no tokenizer here"
        return TokenCounter(f"estimated at {BYTES_PER_TOKEN} bytes a token: {reason}")
    try:
        # transformers takes seconds to import, and a producer may not have it.
        tokenizing = importlib.import_module("worker.running.tokenizing")
    except ImportError:
        return TokenCounter(f"estimated at {BYTES_PER_TOKEN} bytes a token: transformers is not installed")
    encode = tokenizing.Tokenizer(str(folder)).encode
    return TokenCounter(f"by the tokenizer of {settings.model}", encode, _context(settings))


def recent_throughput(engine: Engine) -> Throughput | None:
    """Return how fast the latest jobs were; None where none is done, or nobody can tell."""
    statement = (
        select(JobRow.started_at, JobRow.ended_at, ResultRow.prompt_tokens, ResultRow.completion_tokens)
        .join(ResultRow, ResultRow.job_id == JobRow.id)
        .where(JobRow.state == JobState.DONE, JobRow.started_at.is_not(None))
        .order_by(JobRow.ended_at.desc())
        .limit(RECENT_JOBS)
    )
    with reading(engine) as connection:
        rows = connection.execute(statement).all()
    spans = [(row.started_at, row.ended_at) for row in rows if row.started_at and row.ended_at]
    busy = busy_seconds(spans)
    output_tokens = sum(row.completion_tokens for row in rows)
    tokens = output_tokens + sum(row.prompt_tokens for row in rows)
    if not busy or not tokens:
        return None
    return Throughput(len(rows), tokens / busy, output_tokens / len(rows))


def busy_seconds(spans: list[tuple[datetime, datetime]]) -> float:
    """Return for how long at least one of the spans lasted."""
    busy = 0.0
    until: datetime | None = None
    for start, end in sorted(spans):
        begin = start if until is None else max(start, until)
        if end > begin:
            busy += (end - begin).total_seconds()
            until = end
    return busy


def _context(settings: Settings) -> int | None:
    """Return the longest sequence that a worker with these settings takes; None where the model does not tell."""
    assert settings.model is not None, "a tokenizer was found for it"
    try:
        of_model = read_shape(settings.model).shape.max_model_len
    except PagemillError:
        of_model = None
    return min((limit for limit in (settings.max_model_len, of_model) if limit is not None), default=None)


def _tokenizer_folder(model: str, converted: Path) -> Path | None:
    """Return the folder on this machine that holds the model's tokenizer; None where there is none (yet)."""
    path = locate_model(model)
    if path is None:
        return _cached_folder(model)
    if path.is_dir():
        return path
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    for source in sorted(converted.glob("*/source.json")):
        if json.loads(source.read_text("utf-8")).get("sha256") == digest:
            return source.parent
    return None


def _cached_folder(hub_id: str) -> Path | None:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        return None
    found = hub.try_to_load_from_cache(hub_id, "tokenizer.json")
    return Path(found).parent if isinstance(found, str) else None
