"""Token ids to text: a whole output at once, or one that grows, at a cost that is linear in its tokens."""

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer gives for bytes that are no character, or not one yet
MAX_OPEN_TOKENS = 8  # without a settled end, before one is looked for further back
MAX_BYTES_PER_CHARACTER = 4  # UTF-8: a token may be as little as a quarter of a character


class Detokenizer:
    """How a model's token ids become text.

    `decode` keeps special tokens; `special_token_ids` are those that are left out unless asked for. `byte_values` are
    the tokens that stand for one byte each (SentencePiece's byte fallback): their runs become text as a whole.
    `part_bytes` are those of other tokens that are not whole characters. `letter_id` is a token whose text is one
    letter: what comes behind it is as it is within a text, while a text's first token may lose its space.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        special_token_ids: frozenset[int] = frozenset(),
        byte_values: Mapping[int, int] = MappingProxyType({}),
        part_bytes: Mapping[int, bytes] = MappingProxyType({}),
        letter_id: int | None = None,
    ) -> None:
        """Without `letter_id`, a text that goes on is as one that begins."""
        self._decode = decode
        self._special_token_ids = special_token_ids
        self.byte_values = byte_values
        self._part_bytes = part_bytes
        self.before = [] if letter_id is None else [letter_id]  # what a text that goes on is taken to go on behind
        self._num_before = len(decode(self.before)) if self.before else 0

    def __call__(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, goes_on: bool = False) -> str:
        """Return the text of token ids, nothing tidied up: one of its own, or one that goes on behind another."""
        kept = self.kept(token_ids) if skip_special_tokens else token_ids
        return self._decode([*self.before, *kept])[self._num_before :] if goes_on else self._decode(kept)

    def part_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes of a token that may be a part of a character; None where nobody knows."""
        value = self.byte_values.get(token_id)
        return self._part_bytes.get(token_id) if value is None else bytes([value])

    def kept(self, token_ids: Iterable[int]) -> list[int]:
        """Return the ids of tokens that are not special."""
        return [token_id for token_id in token_ids if token_id not in self._special_token_ids]


class OutputText:
    """One output's text as it grows: what `extend` returned, one after the other, begins the text of the whole.

    A window over the newest tokens is detokenized: some context, whose text is known, and what came after. Tokenizers
    treat an output's first token differently, and may leave a character unfinished; nothing else of theirs looks back,
    but for runs of byte tokens: one byte that fits nowhere turns all of its run into replacement characters.
    """

    def __init__(self, detokenizer: Detokenizer, *, skip_special_tokens: bool = True, goes_on: bool = False) -> None:
        self._detokenizer = detokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = [*detokenizer.before] if goes_on else []
        self._num_context = len(self._window)  # leading tokens of the window, all of whose text was returned
        self._context_text = self._decode(self._window) if self._window else ""
        self._num_given = 0  # characters that were returned of the text behind the context
        self._run: _ByteRun | None = None

    @property
    def run_text(self) -> str:
        """The text of the byte tokens at the end, as far as they make characters. What comes may still undo it."""
        return "" if self._run is None else self._run.text

    def extend(self, token_ids: Sequence[int]) -> str:
        """Take in more tokens. Returns the text that is settled with them: nothing that comes changes it."""
        kept = self._detokenizer.kept(token_ids) if self._skip_special_tokens else token_ids
        return "".join([self._append(token_id) for token_id in kept])

    def _append(self, token_id: int) -> str:
        value = self._detokenizer.byte_values.get(token_id)
        if value is not None:
            if self._run is None:
                is_dropped = not self._window and not self._decode([token_id])  # a space at the very beginning
                self._run = _ByteRun(is_dropped)
            self._run.append(value)
            self._window.append(token_id)
            return ""
        self._run = None
        self._window.append(token_id)
        text = self._decode(self._window)
        if not text.startswith(self._context_text):
            return ""  # the context has not been context for long enough: it is all settled with a later token
        if self._detokenizer.byte_values or not text.endswith(REPLACEMENT):  # a token that is no byte is whole
            return self._settle(text, len(self._window))
        # Whatever the unfinished character becomes, what is before it stays.
        return self._give(text.rstrip(REPLACEMENT)) + self._settle_further_back(text)

    def _settle_further_back(self, text: str) -> str:
        """Move the context where nothing but replacement characters comes, to keep the window short."""
        length = len(self._window)
        if length - self._num_context <= MAX_OPEN_TOKENS:
            return ""
        for end in range(length - MAX_BYTES_PER_CHARACTER, length - 2 * MAX_BYTES_PER_CHARACTER, -1):
            before = self._decode(self._window[:end])
            if before + self._decode(self._window[end:]) == text:  # no character goes across
                return self._settle(before, end)
        return ""

    def _settle(self, text: str, end: int) -> str:
        """Return what is new in `text`, that of the window's first `end` tokens, which become the context."""
        fresh = self._give(text)
        self._num_given -= len(text) - len(self._context_text)
        size = 1
        # Enough tokens to have a text: before that, the next one would count as an output's first.
        while not (context_text := self._decode(self._window[max(0, end - size) : end])) and size < end:
            size *= 2
        start = max(0, end - size)
        del self._window[:start]
        self._num_context = end - start
        self._context_text = context_text
        return fresh

    def _give(self, text: str) -> str:
        fresh = text[len(self._context_text) + self._num_given :]
        self._num_given += len(fresh)
        return fresh

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._detokenizer(token_ids, skip_special_tokens=False)


class _ByteRun:
    """Byte tokens in a row."""

    def __init__(self, is_first_dropped: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_dropping = is_first_dropped
        self._is_broken = False
        self.text = ""  # empty once a byte fits nowhere

    def append(self, value: int) -> None:
        if self._is_dropping or self._is_broken:
            self._is_dropping = False
            return
        try:
            self.text += self._decoder.decode(bytes([value]))
        except UnicodeDecodeError:
            self._is_broken, self.text = True, ""
