"""When a request ends: stop ids, stop strings across token borders, lengths, and what may not end it yet."""

from collections.abc import Sequence
from typing import Any

import pytest

from engine.detokenizing import Detokenizer, OutputText
from engine.request import FinishReason, Request
from engine.stop_strings import StopFinder
from engine.stopping import finish_reason
from tests.engine.fake_model import EOS, MODEL, detokenize, text_of
from tests.engine.fakes import make_request

MAX_MODEL_LEN = 64


def letters(text: str) -> list[int]:
    """Return one token a letter: `text` must use a to h only at even places of the alphabet (a, c, e, g)."""
    token_ids = ["abcdefgh".index(letter) for letter in text]
    assert detokenize(token_ids) == text
    return token_ids


def decode_bytes(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode("utf-8", errors="replace")


as_bytes = Detokenizer(decode_bytes)  # one byte a token, as byte-level vocabularies do for what has no longer token


def stop_position(token_ids: Sequence[int], stops: Sequence[str], detokenize: Detokenizer) -> int | None:
    """Return where the last token completes a stop string, of an output that came token by token."""
    finder = StopFinder(stops, OutputText(detokenize))
    found = [finder.find([token_id]) for token_id in token_ids]
    return found[-1]


def reason_of(
    request: Request, max_model_len: int = MAX_MODEL_LEN, detokenize: Detokenizer = detokenize
) -> FinishReason | None:
    """Return the reason that the last token gives, of an output that came token by token."""
    output, reason = request.output_token_ids, None
    del request.token_ids[request.num_prompt_tokens :]
    for token_id in output:
        request.token_ids.append(token_id)
        reason = finish_reason(request, max_model_len, detokenize)
    return reason


def test_goes_on_without_a_reason() -> None:
    assert reason_of(make_request(output=[5])) is None


def test_model_and_request_stop_ids() -> None:
    assert reason_of(make_request(output=[EOS])) is FinishReason.STOP
    assert reason_of(make_request(output=[7], stop_token_ids=frozenset({7}))) is FinishReason.STOP
    assert reason_of(make_request(output=[EOS, 5])) is None  # only the newest token counts


def test_ignore_eos_keeps_the_requests_own_stop_ids() -> None:
    params: dict[str, Any] = {"ignore_eos": True, "stop_token_ids": frozenset({7})}
    assert reason_of(make_request(output=[EOS], **params)) is None
    assert reason_of(make_request(output=[7], **params)) is FinishReason.STOP


def test_max_tokens_and_context_are_lengths() -> None:
    assert reason_of(make_request(output=[5, 5], max_tokens=2)) is FinishReason.LENGTH
    assert reason_of(make_request([1, 2], [5]), 3) is FinishReason.LENGTH


def test_a_stop_at_the_last_token_is_a_stop() -> None:
    assert reason_of(make_request(output=[5, EOS], max_tokens=2)) is FinishReason.STOP


@pytest.mark.parametrize("num_output", [1, 2])
def test_before_min_tokens_only_length_ends(num_output: int) -> None:
    output = letters("ac")[-num_output:]
    request = make_request(output=output, min_tokens=3, stop=("c",), stop_token_ids=frozenset({2}))
    assert reason_of(request) is None
    at_length = make_request(output=[5, 5], min_tokens=2, max_tokens=2)
    assert reason_of(at_length) is FinishReason.LENGTH


def test_string_completed_before_min_tokens_is_passed_over() -> None:
    params: dict[str, Any] = {"min_tokens": 3, "stop": ("ac",)}
    assert reason_of(make_request(output=letters("ac"), **params)) is None
    assert reason_of(make_request(output=letters("ace"), **params)) is None
    assert reason_of(make_request(output=letters("aceac"), **params)) is FinishReason.STOP_STRING


def test_string_across_token_borders() -> None:
    assert reason_of(make_request(output=letters("gace"), stop=("ace",))) is FinishReason.STOP_STRING
    assert reason_of(make_request(output=letters("gac"), stop=("ace",))) is None


def test_string_within_the_newest_token() -> None:
    token = next(token for token in range(1, 32) if len(detokenize([token])) == 2)
    first_letter = detokenize([token])[0]
    assert reason_of(make_request(output=[2, token], stop=(first_letter,))) is FinishReason.STOP_STRING


def test_string_may_not_begin_in_the_prompt() -> None:
    assert reason_of(make_request(letters("aaaaaac"), letters("e"), stop=("ce",))) is None


def test_string_longer_than_the_output() -> None:
    assert reason_of(make_request(letters("a"), letters("c"), stop=("acegaceg",))) is None


def test_long_output_looks_at_its_end_only() -> None:
    seen: list[int] = []

    def counting(token_ids: Sequence[int]) -> str:
        seen.append(len(token_ids))
        return text_of(token_ids)

    request = make_request(output=letters("g"), max_tokens=10_000, stop=("ace",), ignore_eos=True)
    for token_id in letters("g" * 5000 + "ace"):
        assert finish_reason(request, 20_000, Detokenizer(counting)) is None
        request.token_ids.append(token_id)
    assert finish_reason(request, 20_000, Detokenizer(counting)) is FinishReason.STOP_STRING
    assert request.stop_at == 5001
    assert max(seen) < 20


def test_position_is_where_the_text_is_cut() -> None:
    assert stop_position(letters("gagace"), ["ace"], detokenize) == 3
    assert stop_position(letters("gaga"), ["ace"], detokenize) is None
    # Of several strings that the last token completes, the one that begins first.
    assert stop_position(letters("gace"), ["e", "ace", "ce"], detokenize) == 1


def test_overlapping_occurrence_completed_by_the_last_token() -> None:
    assert stop_position(letters("aaa"), ["aa"], detokenize) == 1


@pytest.mark.parametrize("stop", ["🙂", "é", "k🙂", "ok é"])
def test_string_whose_last_character_spans_tokens(stop: str) -> None:
    """Until a character's last byte is there, its first ones decode to a replacement character as long as it."""
    token_ids = list(f"ok {stop}".encode())
    assert stop_position(token_ids[:-1], [stop], as_bytes) is None
    assert stop_position(token_ids, [stop], as_bytes) == 3
    assert stop_position([*token_ids, ord("!")], [stop], as_bytes) is None


def test_character_spanning_tokens_in_a_long_output() -> None:
    request = make_request(output=list(("x" * 300 + "🙂").encode()), max_tokens=1000, stop=("🙂",))
    assert reason_of(request, 2000, as_bytes) is FinishReason.STOP_STRING


def test_stop_ids_of_the_fake_model() -> None:
    assert make_request().stop_ids == MODEL.stop_token_ids
