"""Questions to a collection: passages that fit, a prompt that begins with them, and an answer that cites them.

Questions that found the same passages share all of the prompt but its end; they are submitted one after another, and
passages stand in the order of their documents rather than of their scores, so that more begin alike.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from worker.errors import ConfigurationError, InvalidJob
from worker.jobs import DEFAULT_TENANT
from worker.queue.submission import NewJob, valid_payload
from worker.rag.model import RagModel
from worker.rag.prompts import TEMPLATE_TOKENS
from worker.rag.retrieval import Hit, Searcher
from worker.records import TERMINAL_STATES, JobState
from worker.sql import collections
from worker.sql.collections import ChunkRecord
from worker.sql.database import reading
from worker.sql.lookups import JobDetail
from worker.sql.store import JobStore

DEFAULT_PASSAGES = 4
MAX_PASSAGES = 64
DEFAULT_MAX_TOKENS = 256
PASSAGE_TOKENS = 32  # of a passage's number, title and source, at most counted so
QUESTIONS_AT_ONCE = 200  # whose prompts are in memory
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
NO_PASSAGE = "no passage of the collection has a word of the question"
DEFAULT_INSTRUCTIONS = (
    "Answer the question from the passages alone. Cite each passage that you use by its number in square brackets, as "
    "in [1]. If the passages do not answer the question, say so."
)

_CITATION = re.compile(r"\[(\d{1,3}(?:\s*,\s*\d{1,3})*)\]")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `custom_id` is the asker's own name for it."""

    text: str
    custom_id: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerPrompt:
    """How questions are answered. Raises InvalidJob for what no job could have."""

    instructions: str = DEFAULT_INSTRUCTIONS
    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    passages: int = DEFAULT_PASSAGES
    context_tokens: int | None = None  # of prompt and output together; None: the model's

    def __post_init__(self) -> None:
        if not 1 <= self.passages <= MAX_PASSAGES:
            raise InvalidJob("passages", f"is {self.passages}; 1 to {MAX_PASSAGES} are possible")
        valid_payload(self.payload((), "x"))

    def payload(self, passages: Sequence[ChunkRecord], question: str) -> dict[str, Any]:
        """Return the JSON object of the job that answers a question, not checked yet."""
        listed = "\n\n".join(
            f"[{number}] {passage.title} ({passage.source})\n{text.strip()}"
            for number, (passage, text) in enumerate(zip(passages, _own_texts(passages), strict=True), start=1)
        )
        messages = [
            {"role": "system", "content": self.instructions},
            {"role": "user", "content": f"Passages:\n\n{listed}\n\nQuestion: {question}"},
        ]
        return {"messages": messages, "max_tokens": self.max_tokens, "temperature": self.temperature}


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A question and what was found for it. `hits` are in the order of their passages in the prompt."""

    question: Question
    hits: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class CitedSource:
    """A passage that the model was given; `cited` tells whether its answer names it."""

    number: int
    source: str
    title: str
    passage: int  # its position in the document, from 0
    score: float
    cited: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """How a question ended. `text` is None where there is no answer, and `error` says why."""

    question: Question
    job_id: str | None  # None where nothing was found, so that nothing was asked
    text: str | None
    finish_reason: str | None  # length: the text was cut at max_tokens
    error: str | None
    sources: tuple[CitedSource, ...]


@dataclass(frozen=True, slots=True)
class Asker:
    """Puts questions to one collection."""

    database: Engine
    searcher: Searcher
    model: RagModel
    prompt: AnswerPrompt

    def retrieve(self, question: Question) -> Retrieved:
        """Return the passages for a question: the best ones, as many as are asked for and fit.

        Raises ConfigurationError where not even one fits.
        """
        hits = self.searcher.search(question.text, self.prompt.passages)
        with reading(self.database) as connection:
            chunks = collections.find_chunks_by_id(connection, [hit.chunk_id for hit in hits])
        room = self._room_for(question)
        chosen: list[tuple[ChunkRecord, Hit]] = []
        for hit in hits:
            chunk = chunks.get(hit.chunk_id)
            if chunk is None:
                continue  # indexed anew since
            room -= chunk.num_tokens + PASSAGE_TOKENS
            if room < 0 and not chosen:
                raise ConfigurationError(
                    f"context: a passage of {chunk.num_tokens} tokens does not fit beside the question and an answer "
                    f"of max_tokens {self.prompt.max_tokens}; {-room} tokens are missing"
                )
            if room < 0:
                break
            chosen.append((chunk, hit))
        chosen.sort(key=lambda pair: (pair[0].source, pair[0].position))
        return Retrieved(question, tuple(hit for _, hit in chosen))

    def passages(self, retrieved: Retrieved) -> list[ChunkRecord]:
        """Return the passages of a question as the model would have them."""
        with reading(self.database) as connection:
            chunks = collections.find_chunks_by_id(connection, [hit.chunk_id for hit in retrieved.hits])
        return [chunks[hit.chunk_id] for hit in retrieved.hits]

    def jobs(self, retrieved: Sequence[Retrieved], fields: Mapping[str, Any], seed: str) -> Iterator[NewJob]:
        """Yield the jobs of questions that found something. `fields` are those of all jobs; `seed` makes the ids."""
        for start in range(0, len(retrieved), QUESTIONS_AT_ONCE):
            page = retrieved[start : start + QUESTIONS_AT_ONCE]
            with reading(self.database) as connection:
                wanted = [hit.chunk_id for one in page for hit in one.hits]
                chunks = collections.find_chunks_by_id(connection, wanted)
            for one in page:
                passages = [chunks[hit.chunk_id] for hit in one.hits]
                payload = {**self.prompt.payload(passages, one.question.text), "model": self.model.name, **fields}
                if one.question.custom_id is not None:
                    payload["custom_id"] = one.question.custom_id
                yield NewJob(job_id(seed, one), valid_payload(payload))

    def answers(self, retrieved: Mapping[str, Retrieved]) -> Iterator[Answer]:
        """Yield the answers of jobs, by id, as they end in SQL."""
        store = JobStore(self.database)
        pending = list(retrieved)
        pause = FIRST_PAUSE_SECONDS
        while pending:
            oldest = pending[:QUESTIONS_AT_ONCE]
            ended = {one: state for one, state in store.states(oldest).items() if state in TERMINAL_STATES}
            with reading(self.database) as connection:
                chunks = collections.find_chunks_by_id(
                    connection, [hit.chunk_id for one in ended for hit in retrieved[one].hits]
                )
            details = {one: store.job(one) for one in ended}
            for one in oldest:
                if (job := details.get(one)) is not None:
                    yield _answer(retrieved[one], job, chunks)
            pending = [one for one in pending if one not in ended]
            pause = FIRST_PAUSE_SECONDS if ended else min(pause * 1.5, LONGEST_PAUSE_SECONDS)
            if pending and not ended:
                time.sleep(pause)

    def _room_for(self, question: Question) -> int:
        context = self.model.context(self.prompt.context_tokens)
        frame = [str(message["content"]) for message in self.prompt.payload((), question.text)["messages"]]
        return context - self.prompt.max_tokens - TEMPLATE_TOKENS - sum(self.model.counter.count(frame))


def checked_question(text: object, custom_id: object = None) -> Question:
    """Return a question, or raise InvalidJob with what is wrong with it."""
    if not isinstance(text, str):
        raise InvalidJob("question", "is missing, or is no text")
    if not text.strip():
        raise InvalidJob("question", "is empty")
    valid_payload({"prompt": text, **({} if custom_id is None else {"custom_id": custom_id})})
    return Question(text, None if custom_id is None else str(custom_id))


def in_prefix_order(retrieved: Sequence[Retrieved]) -> list[Retrieved]:
    """Return questions so that those which begin with the same passages follow each other."""
    return sorted(retrieved, key=lambda one: ([hit.chunk_id for hit in one.hits], one.question.text))


def job_id(seed: str, retrieved: Retrieved) -> str:
    """Return the id of a question's job; the same question under the same seed has the same one."""
    key = json.dumps(
        [seed, retrieved.question.custom_id, retrieved.question.text, [h.chunk_id for h in retrieved.hits]]
    )
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def nothing_found(retrieved: Retrieved) -> Answer:
    """Return the answer to a question that nothing was found for."""
    return Answer(retrieved.question, None, None, None, NO_PASSAGE, ())


def job_fields(batch_id: str | None, size: int, collection: str, tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
    """Return the fields that all jobs of a run have in common."""
    batch = {} if batch_id is None else {"batch_id": batch_id, "batch_size": size}
    return {"tenant": tenant, "metadata": {"rag_collection": collection, "rag_step": "answer"}, **batch}


def _answer(retrieved: Retrieved, job: JobDetail, chunks: Mapping[int, ChunkRecord]) -> Answer:
    text = job.result.text if job.state is JobState.DONE and job.result is not None else None
    cited = {int(number) for found in _CITATION.findall(text or "") for number in found.split(",")}
    sources = tuple(
        CitedSource(number, chunk.source, chunk.title, chunk.position, hit.score, number in cited)
        for number, hit in enumerate(retrieved.hits, start=1)
        if (chunk := chunks.get(hit.chunk_id)) is not None
    )
    if text is not None and job.result is not None:
        return Answer(retrieved.question, job.id, text, job.result.finish_reason, None, sources)
    error = f"{job.error_code}: {job.error_message}" if job.error_code else f"the job was {job.state.value}"
    return Answer(retrieved.question, job.id, None, None, error, sources)


def _own_texts(passages: Sequence[ChunkRecord]) -> Iterator[str]:
    """Yield the texts of passages; one that follows on the one before it does not repeat its end."""
    before: ChunkRecord | None = None
    for passage in passages:
        follows = (
            before is not None and passage.document_id == before.document_id and passage.position == before.position + 1
        )
        yield passage.text[passage.overlap_characters :] if follows else passage.text
        before = passage
