"""Text to token ids and back: the model's own tokenizer and chat template."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

from worker.errors import InvalidJob
from worker.jobs import PromptJob
from worker.running.grammars import Grammars


class Tokenizer:
    """The tokenizer of one model, from a hub id or a local folder.

    One thread may encode while any number decode: encoding changes a fast tokenizer's settings, which fails while
    another thread uses it, so that decoding has a copy of its own.
    """

    def __init__(self, folder: str) -> None:
        self._encoder: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self._decoder: Any = deepcopy(self._encoder)

    def grammars(self, vocab_size: int, stop_token_ids: Iterable[int]) -> Grammars:
        """Return the compiler of grammars over this tokenizer's tokens."""
        return Grammars(self._encoder, vocab_size, stop_token_ids)

    def vocabulary(self) -> dict[str, int]:
        """Return the id of each token, special ones included."""
        vocabulary: dict[str, int] = self._encoder.get_vocab()
        return vocabulary

    @property
    def has_chat_template(self) -> bool:
        return bool(self._encoder.chat_template)

    def encode(self, job: PromptJob) -> list[int]:
        """Return the job's prompt as token ids. Raises InvalidJob when the template refuses it or does not exist."""
        # Not verbose: how long a prompt may be is the engine's to say, in the job's own error.
        if job.raw or (job.prompt is not None and job.system is None and not self.has_chat_template):
            ids: list[int] = self._encoder(job.prompt, verbose=False).input_ids
            return ids
        if not self.has_chat_template:
            raise InvalidJob("messages", "this model has no chat template; send a prompt with raw")
        try:
            rendered: list[int] = self._encoder.apply_chat_template(
                _turns(job), add_generation_prompt=True, return_dict=False, tokenizer_kwargs={"verbose": False}
            )
        except (TemplateError, ValueError) as error:
            raise InvalidJob("messages", f"the chat template refuses them: {_first_line(error)}") from error
        return rendered

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out and nothing tidied up."""
        text: str = self._decoder.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def _turns(job: PromptJob) -> list[dict[str, str]]:
    if job.messages is not None:
        return [{"role": message.role, "content": message.content} for message in job.messages]
    assert job.prompt is not None, "a job has a prompt or messages"
    turns = [{"role": "user", "content": job.prompt}]
    return turns if job.system is None else [{"role": "system", "content": job.system}, *turns]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
