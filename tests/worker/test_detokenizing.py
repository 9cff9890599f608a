"""Outputs that grow, in every kind of tokenizer: their pieces are the text of the whole, and stops are cut exactly."""

from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from engine.detokenizing import Detokenizer, OutputText
from engine.request import FinishReason, Request, RequestFigures, SamplingParams, TokenLogprobs
from engine.stop_strings import StopFinder
from engine.stopping import finish_reason
from tests.worker.tokenizers_at_hand import KINDS, LINES
from worker.running.choices import output_text
from worker.running.growing_output import GrowingOutput
from worker.running.token_logprobs import described, described_prompt
from worker.running.tokenizing import Tokenizer


@pytest.fixture(scope="module", params=[*KINDS, pytest.param("SmolLM2", marks=pytest.mark.model)])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The worker's tokenizer over one of each kind, and over that of the real model."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    if request.param == "SmolLM2":
        return Tokenizer(str(smollm2_tokenizer(request.getfixturevalue("smollm2_gguf"), folder)))
    return saved(request.param, folder)


def smollm2_tokenizer(gguf: Path, folder: Path) -> Path:
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(folder)
    return folder


class Vocabulary:
    """Draws token ids that make trouble, rather often."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.fast: Any = tokenizer._decoder
        self.detokenize = tokenizer.detokenizer
        size = len(self.fast)
        texts = {token_id: self.detokenize([token_id], skip_special_tokens=False) for token_id in range(size)}
        bytes_ = list(self.detokenize.byte_values)
        parts = bytes_ or [token_id for token_id, text in texts.items() if "\ufffd" in text][:300]
        blank = [token_id for token_id, text in texts.items() if not text.strip()]
        special = list(self.fast.added_tokens_decoder)
        of_text = self.fast.backend_tokenizer
        known = st.sampled_from(LINES).map(lambda line: of_text.encode(line, add_special_tokens=False).ids)
        ids = [st.integers(0, size - 1), *(st.sampled_from(some) for some in (parts, blank, special) if some)]
        runs = [st.lists(st.sampled_from(some), min_size=1, max_size=20) for some in (parts, blank) if some]
        one = st.one_of(ids).map(lambda token_id: [token_id])
        characters = [*"🙂é世▁ \n", "\ufffd", "a🙂b"]
        encoded = st.sampled_from(characters).map(lambda text: of_text.encode(text, add_special_tokens=False).ids)
        several = st.lists(st.one_of(one, encoded, known, *runs), max_size=12)
        self.outputs: st.SearchStrategy[list[int]] = several.map(lambda parts: list(chain.from_iterable(parts)))


vocabulary_of = cache(Vocabulary)


@settings(max_examples=60)
@given(data=st.data(), skip=st.booleans(), goes_on=st.booleans())
def test_pieces_are_the_text_of_the_whole(tokenizer: Tokenizer, data: st.DataObject, skip: bool, goes_on: bool) -> None:
    vocabulary = vocabulary_of(tokenizer)
    detokenize = vocabulary.detokenize
    token_ids = data.draw(vocabulary.outputs)
    text = OutputText(detokenize, skip_special_tokens=skip, goes_on=goes_on)
    before = detokenize.before if goes_on else []
    shown = ""
    for place, token_id in enumerate(token_ids):
        shown += text.extend([token_id])
        whole = str(vocabulary.fast.decode([*before, *token_ids[: place + 1]], skip_special_tokens=skip))
        whole = whole[len(before) :]
        assert whole == detokenize(token_ids[: place + 1], skip_special_tokens=skip, goes_on=goes_on)
        assert whole.startswith(shown)
        kept = detokenize.kept(token_ids[: place + 1]) if skip else token_ids[: place + 1]
        if kept and kept[-1] in detokenize.byte_values:
            assert not text.run_text or "\ufffd" in whole or whole == shown + text.run_text
        elif not whole.endswith("\ufffd"):
            assert shown == whole


@settings(max_examples=60)
@given(data=st.data(), steps=st.integers(1, 4), goes_on=st.booleans())
def test_stop_strings_cut_exactly_and_are_never_shown(
    tokenizer: Tokenizer, data: st.DataObject, steps: int, goes_on: bool
) -> None:
    vocabulary = vocabulary_of(tokenizer)
    token_ids = data.draw(vocabulary.outputs)
    whole = vocabulary.detokenize(token_ids, goes_on=goes_on)
    begin = data.draw(st.integers(0, len(whole)))
    stops = [stop for stop in (whole[begin : begin + data.draw(st.integers(1, 5))], "no such text") if stop]
    request = request_with(stops, goes_on=goes_on)
    growing = GrowingOutput(request.params, vocabulary.detokenize)
    shown = ""
    for number, token_id in enumerate(token_ids):
        before = vocabulary.detokenize(request.output_token_ids, goes_on=goes_on)
        request.token_ids.append(token_id)
        request.finish_reason = finish_reason(request, 10_000, vocabulary.detokenize)
        if number % steps == 0 or request.finish_reason:
            fresh = growing.unsent(request)
            growing.forget(len(fresh))
            shown += fresh
        if request.finish_reason:
            break
    output = output_text(request, vocabulary.detokenize)
    assert output.startswith(shown)
    if request.finish_reason is FinishReason.STOP_STRING:
        assert vocabulary.detokenize(request.output_token_ids, goes_on=goes_on)[len(output) :].startswith(tuple(stops))
        assert "\ufffd" in before or not any(stop in before for stop in stops)
    else:
        assert "\ufffd" in whole or not any(stop in whole for stop in stops)


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback", "word-piece"])
def test_a_text_that_goes_on_keeps_its_space(kind: str, tmp_path: Path) -> None:
    """Prompt and output make a sentence, also where a text's first token loses its space."""
    tokenizer = saved(kind, tmp_path)
    ids = tokenizer._encoder.backend_tokenizer.encode("The quick brown", add_special_tokens=False).ids
    texts = {place: tokenizer.detokenizer(ids[place:], goes_on=True) for place in range(1, len(ids))}
    assert " brown" in texts.values()
    assert all("The quick brown".endswith(text) for text in texts.values())


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback"])
@pytest.mark.parametrize("goes_on", [False, True])
def test_tokens_with_log_probabilities_are_the_text(kind: str, goes_on: bool, tmp_path: Path) -> None:
    tokenizer = saved(kind, tmp_path)
    detokenize, fast = tokenizer.detokenizer, tokenizer._encoder.backend_tokenizer
    bos, ids = fast.token_to_id("<s>"), fast.encode("The quick 🙂 世", add_special_tokens=False).ids
    request = request_with([], goes_on=goes_on, logprobs=1, prompt_logprobs=1)
    noted = TokenLogprobs(-1.0, ((bos, -0.5),))
    request.token_ids = [bos, *ids, *ids, fast.token_to_id("</s>")]
    request.num_prompt_tokens = len(ids) + 1
    request.logprobs, request.prompt_logprobs = [noted] * (len(ids) + 1), [noted] * len(ids)
    prompt, output = described_prompt(request, detokenize), described(request, detokenize)
    assert prompt is not None
    assert output is not None
    assert text_of(prompt) == "The quick 🙂 世"
    assert text_of(output) == output_text(request, detokenize)
    assert [one["token"] for one in output[0]["top_logprobs"]] == ["<s>"], "one is told from another by its name"
    assert output[-1]["token"] == ""


def text_of(entries: Sequence[dict[str, Any]]) -> str:
    """Return the text that a producer may make of the bytes of tokens."""
    return b"".join(bytes(entry.get("bytes", entry["token"].encode())) for entry in entries).decode()


def saved(kind: str, folder: Path) -> Tokenizer:
    PreTrainedTokenizerFast(tokenizer_object=KINDS[kind](), bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return Tokenizer(str(folder))


def request_with(stops: Sequence[str], **options: Any) -> Request:
    return Request(
        request_id="r",
        tenant="",
        token_ids=[1],
        num_prompt_tokens=1,
        params=SamplingParams(max_tokens=5_000, stop=tuple(stops), **options),
        stop_ids=frozenset(),
        figures=RequestFigures(arrived_at=0.0),
    )


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback"])
@pytest.mark.parametrize("text", ["word 🙂 ", "\ufffd"])
def test_cost_is_linear(kind: str, text: str) -> None:
    """Whatever comes, characters that are never finished too, no token makes the tokenizer look far back."""
    fast = KINDS[kind]()
    num_decoded = 0

    def counting(token_ids: Sequence[int]) -> str:
        nonlocal num_decoded
        num_decoded += len(token_ids)
        return str(fast.decode(token_ids, skip_special_tokens=False))

    token_ids = fast.encode(text * 500, add_special_tokens=False).ids
    if text == "\ufffd":  # bytes in the wrong order: none of them makes a character
        token_ids.reverse()
    ids = ((fast.token_to_id(f"<0x{value:02X}>"), value) for value in range(256))
    values = {token_id: value for token_id, value in ids if token_id is not None}
    finder = StopFinder(["never there"], OutputText(Detokenizer(counting, byte_values=values)))
    for token_id in token_ids:
        assert finder.find([token_id]) is None
    assert num_decoded < 40 * len(token_ids)
