"""The prompts of summaries: what all of them share comes first, so that the prefix cache has it once.

A prompt's version is the hash of everything that shapes it besides the document: with another, documents run again.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from worker.errors import InvalidJob
from worker.jobs import MAX_OUTPUT_TOKENS, output_marker
from worker.queue.submission import valid_payload
from worker.rag.sources import hash_of

TEMPLATE_VERSION = 1  # rises with a change to the texts below
TEMPLATE_TOKENS = 128  # room for what a model's chat template adds
ITEM_TOKENS = 8  # around an output in a list of them
MAX_INSTRUCTIONS_CHARACTERS = 20_000
DEFAULT_INSTRUCTIONS = (
    "You summarise documents. State what the document is about and its most important points, in plain words and "
    "complete sentences. Use only what the document says."
)
DEFAULT_MAX_TOKENS = 160

Count = Callable[[str], int]  # tokens of a text
Payload = dict[str, Any]  # the JSON object of a job, not checked yet


@dataclass(frozen=True, slots=True)
class SummaryPrompt:
    """What is asked of each document. Raises InvalidJob for what no job could have."""

    instructions: str = DEFAULT_INSTRUCTIONS
    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if len(self.instructions) > MAX_INSTRUCTIONS_CHARACTERS:
            raise InvalidJob(
                "instructions",
                f"have {len(self.instructions)} characters; at most {MAX_INSTRUCTIONS_CHARACTERS} are accepted",
            )
        if not self.instructions.strip():
            raise InvalidJob("instructions", "are empty")
        if not 1 <= self.max_tokens <= MAX_OUTPUT_TOKENS:
            raise InvalidJob("max_tokens", f"is {self.max_tokens}; 1 to {MAX_OUTPUT_TOKENS} are possible")
        valid_payload(self._job("x"))

    @property
    def version(self) -> str:
        """The JSON of all that shapes the prompt."""
        fields = {"instructions": self.instructions, "max_tokens": self.max_tokens, "temperature": self.temperature}
        return json.dumps({"template": TEMPLATE_VERSION, **fields}, sort_keys=True, ensure_ascii=False)

    @property
    def hash(self) -> str:
        return hash_of(self.version.encode())

    def of_whole(self, title: str, text: str) -> Payload:
        """Return the job that summarises a document at once."""
        return self._job(f"Document: {title}\n\n{text}\n\nWrite the summary of this document.")

    def of_part(self, title: str, text: str, number: int, num_parts: int) -> Payload:
        """Return the job that summarises a part of a document; `number` counts from 1."""
        return self._job(
            f"Document: {title}\nPart {number} of {num_parts}:\n\n{text}\n\nWrite the summary of this part."
        )

    def of_summaries(self, title: str, job_ids: Sequence[str]) -> Payload:
        """Return the job that makes one summary of the outputs of others, which it waits for."""
        listed = "\n\n".join(f"{number}. {output_marker(job_id)}" for number, job_id in enumerate(job_ids, start=1))
        text = f"Document: {title}\nSummaries of its parts, in order:\n\n{listed}"
        return self._job(f"{text}\n\nWrite one summary of the whole document.", inputs=job_ids)

    def frame_tokens(self, title: str, count: Count) -> int:
        """Return the most tokens of a prompt without the document, or the summaries, in it."""
        texts = [message["content"] for message in self.of_part(title, "", 99_999, 99_999)["messages"]]
        return sum(map(count, texts)) + TEMPLATE_TOKENS

    def _job(self, text: str, *, inputs: Sequence[str] = ()) -> Payload:
        messages = [{"role": "system", "content": self.instructions}, {"role": "user", "content": text}]
        parameters = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return {"messages": messages, **parameters, **({"inputs": list(inputs)} if inputs else {})}
