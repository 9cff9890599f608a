"""Text to token ids and back: the model's own tokenizer and chat template."""

from collections.abc import Container, Iterable
from copy import deepcopy
from functools import partial
from string import ascii_lowercase
from typing import Any

from tokenizers import decoders, pre_tokenizers
from transformers import AutoTokenizer

from engine.detokenizing import Detokenizer
from worker.errors import InvalidJob
from worker.jobs import PromptJob
from worker.running.chat_template import ChatTemplates
from worker.running.conversation import Turn, turns_of, without_calls, without_results
from worker.running.grammars import Grammars
from worker.running.tool_forms import ToolForm, form_of

NUM_BYTES = 256


class Tokenizer:
    """The tokenizer of one model, from a hub id or a local folder.

    One thread may encode while any number decode: encoding changes a fast tokenizer's settings, which fails while
    another thread uses it, so that decoding has a copy of its own.
    """

    def __init__(self, folder: str) -> None:
        self._encoder: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self._decoder: Any = deepcopy(self._encoder)
        self._templates = ChatTemplates()

    def grammars(self, vocab_size: int, stop_token_ids: Iterable[int]) -> Grammars:
        """Return the compiler of grammars over this tokenizer's tokens."""
        return Grammars(self._encoder, vocab_size, stop_token_ids, self._tool_form)

    def vocabulary(self) -> dict[str, int]:
        """Return the id of each token, special ones included."""
        vocabulary: dict[str, int] = self._encoder.get_vocab()
        return vocabulary

    @property
    def has_chat_template(self) -> bool:
        return bool(self._encoder.chat_template)

    @property
    def _tool_form(self) -> ToolForm | None:
        """The form in which the model's template has it call tools; None where it is none that is known."""
        return form_of(self._encoder.get_chat_template(tools=[])) if self.has_chat_template else None

    def encode(self, job: PromptJob) -> list[int]:
        """Return the job's prompt as token ids. Raises InvalidJob when the template refuses it or does not exist."""
        # Not verbose: how long a prompt may be is the engine's to say, in the job's own error.
        is_plain = job.prompt is not None and job.system is None and not job.offered_tools
        if job.raw or (is_plain and not self.has_chat_template):
            ids: list[int] = self._encoder(job.prompt, verbose=False).input_ids
            return ids
        if not self.has_chat_template:
            raise InvalidJob("messages", "this model has no chat template; send a prompt with raw")
        encoded: list[int] = self._encoder(self._rendered(job), add_special_tokens=False, verbose=False).input_ids
        return encoded

    def _rendered(self, job: PromptJob) -> str:
        """Return a conversation as text. What the template would leave out is refused."""
        turns = turns_of(job)
        tools = [tool.model_dump(mode="json", exclude_none=True) for tool in job.offered_tools]
        text = self._render(turns, tools)
        if tools and text == self._render(turns, []):
            raise InvalidJob("tools", "this model's chat template does not tell the model of tools")
        if (fewer := without_calls(turns)) != turns and text == self._render(fewer, tools):
            raise InvalidJob("messages", "tool_calls are left out by this model's chat template")
        if (fewer := without_results(turns)) != turns and text == self._render(fewer, tools):
            raise InvalidJob("messages", "of the role tool are left out by this model's chat template")
        return text

    def _render(self, turns: list[Turn], tools: list[dict[str, Any]]) -> str:
        try:
            return self._templates.render(
                self._encoder.get_chat_template(tools=tools or None),
                **self._encoder.special_tokens_map,
                messages=turns,
                tools=tools or None,
                documents=None,
                add_generation_prompt=True,
            )
        except Exception as error:  # whatever is the matter with it: the worker goes on
            name = self._encoder.name_or_path
            raise InvalidJob("messages", f"the chat template of {name} refuses them: {_first_line(error)}") from error

    @property
    def detokenizer(self) -> Detokenizer:
        """What turns this tokenizer's ids into text, special tokens left out unless asked for, nothing tidied up."""
        return Detokenizer(
            partial(self._decoder.decode, clean_up_tokenization_spaces=False),
            special_token_ids=_special_token_ids(self._decoder),
            byte_values=_byte_values(self._decoder),
            part_bytes=_part_bytes(self._decoder),
            letter_id=_letter_id(self._decoder),
        )


def _special_token_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids that the tokenizer itself leaves out: tokens that were added to its vocabulary as special."""
    added = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))


def _byte_values(tokenizer: Any) -> dict[int, int]:
    """Return the byte of each token that stands for one, where the vocabulary falls back on bytes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # What pickling says of the decoder alone: all of a tokenizer as JSON takes seconds where its vocabulary is large.
    if backend is None or backend.decoder is None or b"ByteFallback" not in backend.decoder.__getstate__():
        return {}
    ids = ((backend.token_to_id(f"<0x{value:02X}>"), value) for value in range(256))
    return {token_id: value for token_id, value in ids if token_id is not None}


def _part_bytes(tokenizer: Any) -> dict[int, bytes]:
    """Return the bytes of each token that is not whole characters, where the vocabulary writes every byte as a letter:
    as its own, or as one from U+0100 on, in the bytes' order, where that cannot be shown."""
    if not _is_byte_level(tokenizer):
        return {}
    letters = pre_tokenizers.ByteLevel.alphabet()
    shown = {ord(letter) for letter in letters if ord(letter) < NUM_BYTES}
    others = zip(sorted(letter for letter in letters if ord(letter) >= NUM_BYTES), _all_but(shown), strict=True)
    values = {**{chr(value): value for value in shown}, **dict(others)}
    vocabulary = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    of_bytes = {
        token_id: bytes(values[letter] for letter in token)
        for token, token_id in vocabulary.items()
        if values.keys() >= set(token)
    }
    return {token_id: data for token_id, data in of_bytes.items() if not _is_text(data)}


def _all_but(values: Container[int]) -> list[int]:
    return [value for value in range(NUM_BYTES) if value not in values]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _letter_id(tokenizer: Any) -> int | None:
    """Return a token that is one letter and shows as such; None where tokens have the same text wherever they stand."""
    if _is_byte_level(tokenizer):
        return None
    for letter in ascii_lowercase:
        token_id: int | None = tokenizer.convert_tokens_to_ids(letter)
        if token_id is not None and tokenizer.decode([token_id] * 2).startswith(letter):
            return token_id
    return None


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and isinstance(backend.decoder, decoders.ByteLevel)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
