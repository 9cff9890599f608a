"""Benchmark workloads from real text: the language reference that ships with Python, `pydoc_data.topics`."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Any

DOCUMENT_TOKENS = 760
LONG_DOCUMENT_TOKENS = 7_600  # of a context of 8,192
REQUESTS_PER_DOCUMENT = 8
MIXED_TOKENS = (60, 760)  # shortest and longest text of the mixed workload: many are short and a few are long
EVEN_TOKENS = (120, 480)  # of the even one: as many tokens in all, without long texts
QUOTED_TOKENS = 160  # of a text that is to be repeated, and of the output
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
Cut = Callable[[str, int], str]  # shortens a text to a number of tokens


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
    encode: Encode, cut: Cut, num_requests: int, document_tokens: int = DOCUMENT_TOKENS
) -> list[BenchmarkRequest]:
    """Return documents that are each asked eight questions (the last one maybe fewer): the document comes first in
    every prompt.

    Requests of one document are neighbours, as a bulk job submits them.
    """
    lengths = _output_lengths(num_requests)
    texts = _documents(-(-num_requests // REQUESTS_PER_DOCUMENT), document_tokens, cut)
    prompts = [encode(f"Read this text.\n\n{text}\n\n{question}") for text in texts for question in QUESTIONS]
    return [BenchmarkRequest(tuple(p), length) for p, length in zip(prompts, lengths, strict=False)]


def mixed_workload(encode: Encode, cut: Cut, num_requests: int) -> list[BenchmarkRequest]:
    """Return requests over texts of very different lengths, which share nothing but the chat template.

    Lengths are spread evenly by their logarithm, as those of what people send are: half of the texts are shorter than
    a third of the longest.
    """
    shortest, longest = MIXED_TOKENS
    ratio = (longest / shortest) ** (1 / max(1, num_requests - 1))
    lengths = [round(longest / ratio**index) for index in range(num_requests)]  # the longest of the longest topics
    return _over_texts(encode, cut, lengths)


def even_workload(encode: Encode, cut: Cut, num_requests: int) -> list[BenchmarkRequest]:
    """Return requests over texts that are about as long as each other, which share nothing but the chat template."""
    generator = random.Random(1)
    return _over_texts(encode, cut, [generator.randint(*EVEN_TOKENS) for _ in range(num_requests)])


def _over_texts(encode: Encode, cut: Cut, lengths: Sequence[int]) -> list[BenchmarkRequest]:
    """Return a request for each length of a text, in a fixed order that is not theirs."""
    texts = _documents(len(lengths), max(lengths), cut)
    prompts = [
        encode(f"{QUESTIONS[index % len(QUESTIONS)]}\n\n{cut(text, length)}")
        for index, (text, length) in enumerate(zip(texts, lengths, strict=True))
    ]
    random.Random(2).shuffle(prompts)
    outputs = _output_lengths(len(lengths))
    return [BenchmarkRequest(tuple(prompt), output) for prompt, output in zip(prompts, outputs, strict=True)]


def long_workload(encode: Encode, cut: Cut, num_requests: int) -> list[BenchmarkRequest]:
    """Return documents of almost the whole context, each asked eight questions."""
    return rag_workload(encode, cut, num_requests, LONG_DOCUMENT_TOKENS)


def summary_workload(encode: Encode, cut: Cut, num_requests: int) -> list[BenchmarkRequest]:
    """Return requests for the very words of a text, as extraction, correction and quoting summaries are."""
    texts = _documents(num_requests, QUOTED_TOKENS, cut)
    prompts = [encode(f"Repeat the following text word for word, from its beginning.\n\n{text}") for text in texts]
    return [BenchmarkRequest(tuple(prompt), QUOTED_TOKENS) for prompt in prompts]


WORKLOADS = {
    "rag": rag_workload,
    "mixed": mixed_workload,
    "even": even_workload,
    "long": long_workload,
    "summary": summary_workload,
}


def _documents(count: int, num_tokens: int, cut: Cut) -> Sequence[str]:
    """Return `count` texts of up to `num_tokens`, in a fixed order: the longest topics, or parts of all joined where
    there are too few or they are too short."""
    topics_by_length = sorted(topics.values(), key=lambda text: (-len(text), text))
    if count <= len(topics_by_length) // 2 and num_tokens <= DOCUMENT_TOKENS:
        return [cut(text, num_tokens) for text in topics_by_length[:count]]
    joined = "\n\n".join(topics_by_length)
    part = len(joined) // count
    return [cut(joined[index * part :], num_tokens) for index in range(count)]


def _output_lengths(count: int) -> list[int]:
    """Return fixed lengths spread evenly over the range, shuffled."""
    low, high = OUTPUT_TOKENS
    lengths = [low + round(index * (high - low) / max(1, count - 1)) for index in range(count)]
    random.Random(0).shuffle(lengths)
    return lengths
