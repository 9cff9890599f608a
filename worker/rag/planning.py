"""What it takes to summarise a document: one job where it fits, else a tree of them, known before the first one runs.

Level 0 reads the document's parts; each level above reads the outputs of the one below, until one job has all.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from worker.errors import ConfigurationError
from worker.jobs import MAX_INPUTS
from worker.rag.prompts import ITEM_TOKENS, Payload, SummaryPrompt


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbours that are read together: of chunks, or of jobs of the level below. `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How a document is summarised. `levels[0]` are spans of its chunks, each next one spans of the level below."""

    levels: tuple[tuple[Span, ...], ...]

    @property
    def num_jobs(self) -> int:
        return sum(map(len, self.levels))


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job of a plan."""

    job_id: str
    level: int
    position: int
    payload: Payload


def plan_summary(chunk_tokens: Sequence[int], room: int, max_tokens: int) -> Plan:
    """Return the plan for a document of chunks of these lengths, what they repeat left out.

    `room` are the tokens of a prompt that a document, or the summaries of its parts, may have. Raises
    ConfigurationError where a chunk, or two outputs of `max_tokens`, do not fit into it.
    """
    longest = max(chunk_tokens)
    if longest > room:
        raise ConfigurationError(
            f"context: {max(room, 0)} tokens are left for a document's part, but a passage has {longest}; allow more "
            "(--context), shorten the instructions, or index with fewer --chunk-tokens"
        )
    levels = [_packed(chunk_tokens, room)]
    while len(levels[-1]) > 1:
        most = min(room // (max_tokens + ITEM_TOKENS), MAX_INPUTS)
        if most < 2:
            raise ConfigurationError(
                f"context: {room} tokens are left for the summaries of a document's parts, but two of max_tokens "
                f"{max_tokens} need {2 * (max_tokens + ITEM_TOKENS)}; allow more (--context) or shorter ones"
            )
        levels.append(_evenly(len(levels[-1]), most))
    return Plan(tuple(levels))


def planned_jobs(plan: Plan, prompt: SummaryPrompt, title: str, texts: Sequence[str], seed: str) -> list[PlannedJob]:
    """Return the jobs of a plan, those that others wait for first. `texts` are the document's chunks without what they
    repeat; `seed` makes the ids: the same one gives the same jobs again."""
    ids = [[_job_id(seed, level, place) for place in range(len(spans))] for level, spans in enumerate(plan.levels)]
    jobs = []
    for level, spans in enumerate(plan.levels):
        for place, span in enumerate(spans):
            if level > 0:
                payload = prompt.of_summaries(title, ids[level - 1][span.start : span.end])
            else:
                text = "".join(texts[span.start : span.end]).strip()
                is_whole = len(spans) == 1
                payload = (
                    prompt.of_whole(title, text) if is_whole else prompt.of_part(title, text, place + 1, len(spans))
                )
            jobs.append(PlannedJob(ids[level][place], level, place, payload))
    return jobs


def _job_id(seed: str, level: int, position: int) -> str:
    return hashlib.sha256(f"{seed} {level} {position}".encode()).hexdigest()[:32]


def _packed(lengths: Sequence[int], room: int) -> tuple[Span, ...]:
    """Return as few spans as fit, of about the same length."""
    total = sum(lengths)
    target = total / -(-total // room)
    spans: list[Span] = []
    start = filled = 0
    for place, length in enumerate(lengths):
        if place > start and (filled + length > room or filled + length / 2 > target):
            spans.append(Span(start, place))
            start, filled = place, 0
        filled += length
    return (*spans, Span(start, len(lengths)))


def _evenly(number: int, most: int) -> tuple[Span, ...]:
    """Return as few spans of at most `most` as there can be, of about the same size."""
    num_spans = -(-number // most)
    borders = [number * place // num_spans for place in range(num_spans + 1)]
    return tuple(Span(start, end) for start, end in pairwise(borders))
