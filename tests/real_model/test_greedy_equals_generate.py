"""SmolLM2-135M in float32: greedy outputs equal transformers' `generate`, token for token, however requests are run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine
from engine.model_loader import LoadedModel, load_model
from engine.model_runner import ModelRunner
from engine.request import FinishReason, Request, SamplingParams
from scripts.benchmarks.workload import encoder

pytestmark = pytest.mark.model

NUM_TOKENS = 14
CONTEXT = 1024
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about rain on a tin roof.",
    "Explain what a hash table is to a child of ten.",
    "List three reasons why the sky is blue during the day and red in the evening.",
    "Translate 'good morning, my friend' into Spanish and say how it is pronounced.",
    "hello",
    "Give me the Fibonacci numbers below 100, separated by commas.",
    "My shop sells apples for 2 and pears for 3 coins. What do five apples and four pears cost? Think step by step.",
    "Name a fruit that is yellow. Answer with one word.",
    "Was ist der Unterschied zwischen Wetter und Klima?",
)
# Topic of the Python language reference, its length in tokens, and what is asked about it. The first two are shared.
DOCUMENTS = (
    ("with", 200, "Summarise the text in two sentences."),
    ("with", 200, "Which errors can occur according to the text?"),
    ("with", 200, "Give a short example of code that the text allows."),
    ("exceptions", 150, "List the terms that the text defines."),
    ("exceptions", 150, "What would a beginner misunderstand here?"),
    ("if", 60, "What is this about?"),
    ("booleans", 110, "Summarise the text in one sentence."),
    ("assert", 140, "What does the text say about debugging?"),
    ("break", 90, "Where may this statement stand?"),
    ("naming", 260, "How are names resolved?"),
    ("numbers", 70, "Give two examples."),
    ("slicings", 120, "How is a slice evaluated?"),
    ("function", 320, "How are default values evaluated?"),
    ("import", 860, "Which rule in the text is most often got wrong, and why?"),
)


@dataclass(frozen=True, slots=True)
class Oracle:
    """Prompts of token ids, and what transformers generates from each alone."""

    prompts: Sequence[list[int]]
    outputs: Sequence[list[int]]


@pytest.fixture(scope="module")
def loaded(smollm2_gguf: Path) -> LoadedModel:
    cache_dir = smollm2_gguf.parent / "converted"
    return load_model(str(smollm2_gguf), dtype=torch.float32, device=torch.device("cpu"), cache_dir=cache_dir)


@contextmanager
def one_thread() -> Iterator[None]:
    """One sequence at a time gains little from a second thread, and loses much where the machine does other work."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def oracle(loaded: LoadedModel) -> Oracle:
    model: Any = AutoModelForCausalLM.from_pretrained(loaded.folder, dtype=torch.float32)
    prompts = make_prompts(AutoTokenizer.from_pretrained(loaded.folder))
    outputs = []
    with one_thread():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NUM_TOKENS, "do_sample": False}
            output = model.generate(ids, **options)
            outputs.append(cast(list[int], output[0, len(prompt) :].tolist()))
    return Oracle(prompts, outputs)


def make_prompts(tokenizer: Any) -> list[list[int]]:
    """Return the chat template's token ids of each question, alone or below a document."""
    encode = encoder(tokenizer)

    def beginning(topic: str, num_tokens: int) -> str:
        text: str = tokenizer.decode(tokenizer(topics[topic]).input_ids[:num_tokens])
        return text

    documents = [f"Read this text.\n\n{beginning(topic, length)}\n\n{ask}" for topic, length, ask in DOCUMENTS]
    return [encode(text) for text in (*QUESTIONS, *documents)]


def make_engine(loaded: LoadedModel, *, num_blocks: int = 800, token_budget: int = 512) -> Engine:
    config = EngineConfig(num_blocks=num_blocks, max_model_len=CONTEXT, max_num_seqs=32, token_budget=token_budget)
    return Engine(
        config, ModelRunner(loaded.model, num_blocks, config.block_size), loaded.identity, Detokenizer(lambda _ids: "")
    )


def run(engine: Engine, prompts: Sequence[list[int]], *, tenant: str = "") -> list[Request]:
    """Add all prompts at once and step until they are done, integrity checked at every step."""
    params = SamplingParams(max_tokens=NUM_TOKENS)
    requests = [engine.add(str(index), prompt, params, tenant=tenant) for index, prompt in enumerate(prompts)]
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()
    return requests


def outputs_of(requests: Sequence[Request]) -> list[list[int]]:
    return [request.output_token_ids for request in requests]


def test_the_prompts_are_of_all_kinds(oracle: Oracle) -> None:
    lengths = [len(prompt) for prompt in oracle.prompts]
    assert len(lengths) >= 24
    assert min(lengths) < 40
    assert max(lengths) > 850
    assert len(set(map(tuple, oracle.outputs))) == len(lengths)
    assert any(len(output) < NUM_TOKENS for output in oracle.outputs), "none stops by itself"


def test_alone(loaded: LoadedModel, oracle: Oracle) -> None:
    engine = make_engine(loaded)
    for index, (prompt, output) in enumerate(zip(oracle.prompts, oracle.outputs, strict=True)):
        with one_thread():
            (request,) = run(engine, [prompt], tenant=str(index))  # tenants share no prefix
        assert request.figures.prefix_hit_tokens == 0
        assert request.output_token_ids == output
        stopped = output[-1] in loaded.identity.stop_token_ids
        assert request.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)


def test_batched_then_with_a_warm_prefix_cache(loaded: LoadedModel, oracle: Oracle) -> None:
    engine = make_engine(loaded)
    cold = run(engine, oracle.prompts)
    assert outputs_of(cold) == oracle.outputs
    assert sum(request.figures.prefix_hit_tokens > 180 for request in cold) == 2  # the shared document, in one step
    warm = run(engine, oracle.prompts)
    assert outputs_of(warm) == oracle.outputs
    assert all(request.figures.prefix_hit_tokens > 0 for request in warm)
    assert sum(request.figures.prefix_hit_tokens for request in warm) > 0.9 * sum(map(len, oracle.prompts))


def test_chunked_prefill(loaded: LoadedModel, oracle: Oracle) -> None:
    engine = make_engine(loaded, token_budget=64)
    assert outputs_of(run(engine, oracle.prompts)) == oracle.outputs
    assert engine.status().steps > sum(map(len, oracle.prompts)) / 2 / 64


def test_after_forced_preemptions(loaded: LoadedModel, oracle: Oracle) -> None:
    engine = make_engine(loaded, num_blocks=90)
    requests = run(engine, oracle.prompts)
    assert outputs_of(requests) == oracle.outputs
    assert engine.status().preemptions > 0
    assert any(request.figures.preemptions > 0 and request.num_output_tokens > 1 for request in requests)
