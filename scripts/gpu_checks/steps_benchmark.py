"""A small benchmark of whole engine steps on a GPU: how long it has nothing to do between them, in turn and ahead."""

import time

from torch.profiler import ProfilerActivity, profile

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine, ModelIdentity
from engine.model_runner import ModelRunner
from engine.paged_model import PagedModel
from engine.request import SamplingParams
from scripts.gpu_checks.benchmark import BLOCK_SIZE

NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 64, 96
WAYS = (  # what figures are called, whether steps go ahead, and the first request's penalty
    ("replaced_", False, 0.0),
    ("penalized_", True, 0.5),
    ("", True, 0.0),
)


def measure_steps(
    model: PagedModel, num_requests: int = NUM_REQUESTS, output_tokens: int = OUTPUT_TOKENS
) -> dict[str, float]:
    """Return the ms of a step with asynchronous scheduling, in turn, and ahead where one request has a penalty, and the
    part of that time in which the device runs no kernel. A step is one of `num_requests` requests, which decode from
    short prompts, the prefill's time divided among them. Whatever is recorded or compiled has been, by a run before; a
    profiler sums the kernels of one more run, whose own time does not count."""
    num_blocks = num_requests * -(-(PROMPT_TOKENS + output_tokens) // BLOCK_SIZE)
    runner = ModelRunner(model, num_blocks, BLOCK_SIZE)
    figures: dict[str, float] = {}
    for prefix, async_scheduling, penalty in WAYS:
        config = EngineConfig(
            num_blocks=num_blocks,
            max_model_len=PROMPT_TOKENS + output_tokens,
            block_size=BLOCK_SIZE,
            max_num_seqs=num_requests,
            token_budget=num_requests * PROMPT_TOKENS,
            enable_prefix_caching=False,
            async_scheduling=async_scheduling,
        )
        _decode(model, runner, config, penalty)
        ms = _decode(model, runner, config, penalty)
        activity = ProfilerActivity.CUDA if model.device.type == "cuda" else ProfilerActivity.CPU
        with profile(activities=[activity]) as profiled:
            _decode(model, runner, config, penalty)
        busy_ms = sum(event.self_device_time_total for event in profiled.key_averages()) / 1e3
        figures[f"{prefix}ms"] = ms / output_tokens
        figures[f"{prefix}idle"] = 1.0 - busy_ms / ms
    return figures | {"speedup": figures["replaced_ms"] / figures["ms"]}


def _decode(model: PagedModel, runner: ModelRunner, config: EngineConfig, penalty: float) -> float:
    """Decode a batch that fills the engine to its end, and return the ms that it takes. `penalty` is the first
    request's alone."""
    identity = ModelIdentity(name="random", vocab_size=model.vocab_size, stop_token_ids=frozenset())
    engine = Engine(config, runner, identity, Detokenizer(lambda token_ids: ""))
    for index in range(config.max_num_seqs):
        prompt = [(7 * index + place) % model.vocab_size for place in range(PROMPT_TOKENS)]
        params = SamplingParams(
            max_tokens=config.max_model_len - PROMPT_TOKENS,
            ignore_eos=True,
            presence_penalty=0.0 if index else penalty,
        )
        engine.add(str(index), prompt, params)
    began = time.perf_counter()
    while engine.has_work:
        engine.step()
    return 1e3 * (time.perf_counter() - began)
