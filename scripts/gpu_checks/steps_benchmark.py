"""A small benchmark of whole engine steps on a GPU: how long it has nothing to do between them, in turn and ahead."""

import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine, ModelIdentity
from engine.model_runner import ModelRunner
from engine.offload_policy import CopyTime
from engine.paged_model import PagedModel
from engine.request import SamplingParams
from engine.step_plan import Launched, SchedulerOutput
from scripts.gpu_checks.benchmark import BLOCK_SIZE

NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 64, 96


class Marks:
    """Moments in the order of a device's work."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._seconds: list[float] = []

    def set(self) -> None:
        """Mark where the device's work stands; on a CPU, now."""
        if self._is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._seconds.append(time.perf_counter())

    def between(self) -> list[float]:
        """Return the ms from each mark to the next."""
        if self._is_cuda:
            torch.cuda.synchronize()
            return [begin.elapsed_time(end) for begin, end in pairwise(self._events)]
        return [1e3 * (end - begin) for begin, end in pairwise(self._seconds)]


class MarkedRunner:
    """A model runner whose steps have a mark before and one behind."""

    def __init__(self, runner: ModelRunner, marks: Marks) -> None:
        self._runner = runner
        self._marks = marks

    def launch(self, plan: SchedulerOutput) -> Launched:
        self._marks.set()
        launched = self._runner.launch(plan)
        self._marks.set()
        return launched

    def take_copy_times(self) -> Sequence[CopyTime]:
        return self._runner.take_copy_times()

    def probe(self) -> None:
        self._runner.probe()

    def scrub(self, block_ids: list[int]) -> None:
        self._runner.scrub(block_ids)


def measure_steps(
    model: PagedModel, num_requests: int = NUM_REQUESTS, output_tokens: int = OUTPUT_TOKENS
) -> dict[str, float]:
    """Return the ms of a decoding step with asynchronous scheduling, beside steps in turn, and the part of that time in
    which the device does nothing between steps. Whatever is recorded or compiled has been, by a run before."""
    num_blocks = num_requests * -(-(PROMPT_TOKENS + output_tokens) // BLOCK_SIZE)
    runner = ModelRunner(model, num_blocks, BLOCK_SIZE)
    figures: dict[str, float] = {}
    for prefix, async_scheduling in (("replaced_", False), ("", True)):
        config = EngineConfig(
            num_blocks=num_blocks,
            max_model_len=PROMPT_TOKENS + output_tokens,
            block_size=BLOCK_SIZE,
            max_num_seqs=num_requests,
            token_budget=num_requests * PROMPT_TOKENS,
            enable_prefix_caching=False,
            async_scheduling=async_scheduling,
        )
        for _ in range(2):
            marks = _decode(model, runner, config, num_requests, output_tokens)
        between = marks.between()[2:]  # the prefill, and what follows it, left out
        figures[f"{prefix}ms"] = sum(between) / (len(between) // 2)
        figures[f"{prefix}idle"] = sum(between[1::2]) / sum(between)
    return figures | {"speedup": figures["replaced_ms"] / figures["ms"]}


def _decode(
    model: PagedModel, runner: ModelRunner, config: EngineConfig, num_requests: int, output_tokens: int
) -> Marks:
    """Decode a batch to its end, and return its marks."""
    marks = Marks(model.device)
    identity = ModelIdentity(name="random", vocab_size=model.vocab_size, stop_token_ids=frozenset())
    engine = Engine(config, MarkedRunner(runner, marks), identity, Detokenizer(lambda token_ids: ""))
    for index in range(num_requests):
        prompt = [(7 * index + place) % model.vocab_size for place in range(PROMPT_TOKENS)]
        engine.add(str(index), prompt, SamplingParams(max_tokens=output_tokens, ignore_eos=True))
    while engine.has_work:
        engine.step()
    return marks
