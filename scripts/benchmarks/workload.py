"""Benchmark workloads from real text: the language reference that ships with Python, `pydoc_data.topics`."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Any

DOCUMENT_TOKENS = 760
REQUESTS_PER_DOCUMENT = 8
MIXED_TOKENS = (120, 480)  # shortest and longest document of a request in the mixed workload
OUTPUT_TOKENS = (16, 112)  # shortest and longest output: 64 on average
QUESTIONS = (
    "Summarise the text in two sentences.",
    "Which rule in the text is most often got wrong, and why?",
    "List the terms that the text defines.",
    "What would a beginner misunderstand here?",
    "Give a short example of code that the text allows.",
    "Which errors can occur according to the text?",
    "How does this part of the language interact with functions?",
    "What does the text say about the order of evaluation?",
)

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class BenchmarkRequest:
    """A prompt of token ids and the exact number of tokens to generate."""

    prompt: tuple[int, ...]
    output_tokens: int


def encoder(tokenizer: Any) -> Encode:
    """Return a function from a user's text to the chat template's token ids."""

    def encode(text: str) -> list[int]:
        turns = [{"role": "user", "content": text}]
        ids: list[int] = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        return ids

    return encode


def rag_workload(
    encode: Encode, cut: Callable[[str, int], str], num_documents: int = 4, document_tokens: int = DOCUMENT_TOKENS
) -> list[BenchmarkRequest]:
    """Return `num_documents` documents, each asked eight questions: the document comes first in every prompt.

    `cut` shortens a text to a number of tokens. Requests of one document are neighbours, as a bulk job submits them.
    """
    lengths = _output_lengths(num_documents * REQUESTS_PER_DOCUMENT)
    texts = _documents(num_documents)
    prompts = [
        encode(f"Read this text.\n\n{cut(text, document_tokens)}\n\n{question}")
        for text in texts
        for question in QUESTIONS
    ]
    return [BenchmarkRequest(tuple(p), length) for p, length in zip(prompts, lengths, strict=True)]


def mixed_workload(encode: Encode, cut: Callable[[str, int], str], num_requests: int = 32) -> list[BenchmarkRequest]:
    """Return requests over texts of many lengths that share nothing but the chat template."""
    generator = random.Random(1)
    lengths = _output_lengths(num_requests)
    requests = []
    for index, text in enumerate(_documents(num_requests)):
        prompt = encode(f"{QUESTIONS[index % len(QUESTIONS)]}\n\n{cut(text, generator.randint(*MIXED_TOKENS))}")
        requests.append(BenchmarkRequest(tuple(prompt), lengths[index]))
    return requests


def _documents(count: int) -> Sequence[str]:
    """Return the `count` longest topics' texts, in a fixed order."""
    return sorted(topics.values(), key=lambda text: (-len(text), text))[:count]


def _output_lengths(count: int) -> list[int]:
    """Return fixed lengths spread evenly over the range, shuffled."""
    low, high = OUTPUT_TOKENS
    lengths = [low + round(index * (high - low) / max(1, count - 1)) for index in range(count)]
    random.Random(0).shuffle(lengths)
    return lengths
