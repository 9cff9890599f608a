"""What of an output that is being generated can be shown already."""

from collections.abc import Iterable

from engine.detokenizing import Detokenizer, OutputText
from engine.request import Request, SamplingParams


class GrowingOutput:
    """One request's output, for somebody who is shown it piece by piece; what was shown is never taken back."""

    def __init__(self, params: SamplingParams, detokenize: Detokenizer, before: str = "") -> None:
        """`before` is shown first."""
        self._stops = params.stop
        self._text = OutputText(detokenize, skip_special_tokens=params.skip_special_tokens, goes_on=params.goes_on)
        self._num_taken = 0
        self._unsent = before

    def unsent(self, request: Request) -> str:
        """Return what can be sent now: without a last character of which bytes are missing, and without what may be
        the beginning of a stop string. May be called while the engine steps."""
        # The engine may not have looked yet whether the newest token completes a stop string.
        end = request.num_tokens - bool(self._stops)
        new = request.token_ids[request.num_prompt_tokens + self._num_taken : end]
        self._num_taken += len(new)
        self._unsent += self._text.extend(new)
        return self._unsent[: len(self._unsent) - num_begun(self._unsent, self._stops)]

    def forget(self, num_characters: int) -> None:
        """Take note that so many characters were sent."""
        self._unsent = self._unsent[num_characters:]


def num_begun(text: str, markers: Iterable[str]) -> int:
    """Return how many characters at a text's end may be the beginning of one of the markers."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest
