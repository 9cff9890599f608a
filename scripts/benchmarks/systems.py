"""The systems under test: each serves one workload once, in a process of its own, and says what it took."""

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine
from engine.kv_cache import choose_kv_dtype
from engine.linears import Numerics, Weights
from engine.model_loader import DTYPES, PLAIN, LoadedModel, load_model
from engine.model_runner import ModelRunner
from engine.request import Request, SamplingParams
from engine.speculation.prompt_lookup import PromptLookup
from engine.speculation.speculation import Speculation
from engine.speculation.speculator import Drafter
from scripts.benchmarks.draft_models import drafter_of, first_layers
from scripts.benchmarks.workload import WORKLOADS, BenchmarkRequest, encoder

KV_TOKENS = 131_072  # of cache for our engine
TOKEN_BUDGET = 512
MAX_NUM_SEQS = 128  # as a worker's default is
WARM_UP_TOKENS = 8
STATIC_BATCH = 32
MAX_DRAFT_TOKENS = 8
DRAFT_LAYERS = 24  # of 30: fewer are hardly ever right, for nothing was trained to end there


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of one system over one workload. `scripts/benchmarks/vllm_peer.py` prints the same fields."""

    load_s: float  # from process start to a loaded model
    first_token_s: float  # from process start to the first token of a first, short prompt
    serve_s: float  # first prompt in, last token out
    serve_cpu_s: float | None  # processor time of that, all threads; None where other processes do the work
    peak_rss_bytes: int
    steps: int | None
    prefix_hit_tokens: int | None
    drafted_tokens: int | None
    accepted_tokens: int | None  # of those
    outputs: list[list[int]]  # token ids by request

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Served:
    """What a system made of some requests."""

    outputs: list[list[int]]
    steps: int
    prefix_hit_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


Serve = Callable[[LoadedModel, Sequence[BenchmarkRequest]], Served]
MakeDrafter = Callable[[EngineConfig], Drafter]


@dataclass(frozen=True, slots=True)
class System:
    """How a system serves requests, and what it asks of the model beyond its type."""

    serve: Serve
    numerics: Numerics = PLAIN
    draft_of: Callable[[LoadedModel], LoadedModel] | None = None  # returns the model's draft model


def run_system(
    name: str, requests: Sequence[BenchmarkRequest], dtype: str, gguf: Path, cache_dir: Path, started: float
) -> RunResult:
    """Load the model, answer a short prompt, then serve the requests once. `started` is the process's start, as
    `time.time` gives it."""
    system = SYSTEMS[name]
    device = torch.device("cpu")
    loaded = load_model(str(gguf), dtype=DTYPES[dtype], device=device, cache_dir=cache_dir, numerics=system.numerics)
    serve: Serve = system.serve
    if system.draft_of is not None:
        drafting, vocab_size = system.draft_of(loaded), loaded.identity.vocab_size
        serve = partial(_serve_pagemill, make_drafter=lambda config: drafter_of(drafting, config, vocab_size))
    load_s = time.time() - started
    serve(loaded, [BenchmarkRequest(requests[0].prompt[:WARM_UP_TOKENS], 1)])
    first_token_s = time.time() - started
    begun, begun_cpu = time.perf_counter(), time.process_time()
    served = serve(loaded, requests)
    serve_s, serve_cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
    peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return RunResult(
        load_s,
        first_token_s,
        serve_s,
        serve_cpu_s,
        peak_rss_bytes,
        served.steps,
        served.prefix_hit_tokens,
        served.drafted_tokens,
        served.accepted_tokens,
        served.outputs,
    )


def build_workload(name: str, num_requests: int, tokenizer_folder: str) -> list[BenchmarkRequest]:
    """Return a workload in a model's tokens."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)

    def cut(text: str, num_tokens: int) -> str:
        return str(tokenizer.decode(tokenizer(text).input_ids[:num_tokens]))

    return WORKLOADS[name](encoder(tokenizer), cut, num_requests)


def _serve_pagemill(
    loaded: LoadedModel,
    requests: Sequence[BenchmarkRequest],
    kv_dtype: str = "auto",
    make_drafter: MakeDrafter | None = None,
) -> Served:
    config = EngineConfig(
        num_blocks=KV_TOKENS // 16,
        max_model_len=loaded.model.max_model_len,
        max_num_seqs=MAX_NUM_SEQS,
        token_budget=TOKEN_BUDGET,
    )
    model = loaded.model
    chosen = choose_kv_dtype(kv_dtype, model.dtype, model.head_dim, model.device)
    runner = ModelRunner(model, config.num_blocks, config.block_size, chosen)
    speculation = None if make_drafter is None else Speculation(make_drafter(config), MAX_DRAFT_TOKENS)
    engine = Engine(config, runner, loaded.identity, Detokenizer(lambda token_ids: ""), speculator=speculation)
    for index, request in enumerate(requests):
        engine.add(str(index), request.prompt, SamplingParams(max_tokens=request.output_tokens, ignore_eos=True))
    finished: dict[str, Request] = {}
    while engine.has_work:
        finished.update((request.request_id, request) for request in engine.step())
    ordered = [finished[str(index)] for index in range(len(requests))]
    figures = [request.figures for request in ordered]
    return Served(
        [request.output_token_ids for request in ordered],
        engine.status().steps,
        sum(figure.prefix_hit_tokens for figure in figures),
        sum(figure.drafted_tokens for figure in figures),
        sum(figure.accepted_tokens for figure in figures),
    )


def _serve_static(loaded: LoadedModel, requests: Sequence[BenchmarkRequest]) -> Served:
    """transformers' generate on left-padded batches of 32, each until its longest output is complete."""
    model = AutoModelForCausalLM.from_pretrained(loaded.folder, dtype=loaded.model.dtype).eval()
    outputs: list[list[int]] = []
    steps = 0
    for start in range(0, len(requests), STATIC_BATCH):
        batch = requests[start : start + STATIC_BATCH]
        longest = max(request.output_tokens for request in batch)
        rows = _generate_padded(model, batch, longest)
        outputs += [row[: request.output_tokens] for row, request in zip(rows, batch, strict=True)]
        steps += longest
    return Served(outputs, steps)


def _generate_padded(model: Any, batch: Sequence[BenchmarkRequest], num_tokens: int) -> list[list[int]]:
    width = max(len(request.prompt) for request in batch)
    pad = model.generation_config.pad_token_id
    input_ids = torch.tensor([[pad] * (width - len(r.prompt)) + list(r.prompt) for r in batch])
    mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in batch])
    with torch.inference_mode():
        output = model.generate(
            input_ids, attention_mask=mask, max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False
        )
    rows: list[list[int]] = output[:, width:].tolist()
    return rows


SYSTEMS: Mapping[str, System] = {
    "pagemill": System(_serve_pagemill),
    "pagemill-invariant": System(_serve_pagemill, Numerics(batch_invariant=True)),
    "pagemill-int8": System(_serve_pagemill, Numerics(Weights.INT8)),
    "pagemill-kv-int8": System(partial(_serve_pagemill, kv_dtype="int8")),
    "pagemill-kv-fp8": System(partial(_serve_pagemill, kv_dtype="fp8")),
    "pagemill-ngram": System(partial(_serve_pagemill, make_drafter=lambda config: PromptLookup())),
    "pagemill-draft-layers": System(_serve_pagemill, draft_of=partial(first_layers, num_layers=DRAFT_LAYERS)),
    "pagemill-draft-itself": System(_serve_pagemill, draft_of=lambda loaded: loaded),  # as right, and slow, as can be
    "transformers-static": System(_serve_static),
}
