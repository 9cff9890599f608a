"""The systems under test: each serves one workload once, in a process of its own, and says what it took."""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.config import EngineConfig
from engine.engine import Engine
from engine.model_loader import DTYPES, LoadedModel, load_model
from engine.model_runner import ModelRunner
from engine.request import Request, SamplingParams
from scripts.benchmarks.workload import BenchmarkRequest, encoder, mixed_workload, rag_workload

KV_TOKENS = 65_536  # of cache for our engine
TOKEN_BUDGET = 512
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of one system over one workload."""

    system: str
    workload: str
    dtype: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    load_s: float  # from process start to a loaded model
    serve_s: float  # first prompt in, last token out
    peak_rss_bytes: int
    steps: int
    prefix_hit_tokens: int
    outputs: list[list[int]]  # token ids by request

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Serve = Callable[[LoadedModel, Sequence[BenchmarkRequest]], tuple[list[list[int]], int, int]]


def run_system(name: str, workload: str, dtype: str, gguf: Path, cache_dir: Path) -> RunResult:
    """Load the model, warm up on a few tokens, serve the workload once."""
    started = time.perf_counter()
    loaded = load_model(str(gguf), dtype=DTYPES[dtype], device=torch.device("cpu"), cache_dir=cache_dir)
    requests = build_workload(workload, loaded.folder)
    load_s = time.perf_counter() - started
    serve = SYSTEMS[name]
    serve(loaded, [BenchmarkRequest(requests[0].prompt[:WARM_UP_TOKENS], 2)])
    started = time.perf_counter()
    outputs, steps, prefix_hit_tokens = serve(loaded, requests)
    return RunResult(
        system=name,
        workload=workload,
        dtype=dtype,
        requests=len(requests),
        prompt_tokens=sum(len(request.prompt) for request in requests),
        output_tokens=sum(len(output) for output in outputs),
        load_s=load_s,
        serve_s=time.perf_counter() - started,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        steps=steps,
        prefix_hit_tokens=prefix_hit_tokens,
        outputs=outputs,
    )


def build_workload(name: str, tokenizer_folder: str) -> list[BenchmarkRequest]:
    """Return "rag" or "mixed" in a model's tokens."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)

    def cut(text: str, num_tokens: int) -> str:
        return str(tokenizer.decode(tokenizer(text).input_ids[:num_tokens]))

    build = rag_workload if name == "rag" else mixed_workload
    return build(encoder(tokenizer), cut)


def _serve_pagemill(loaded: LoadedModel, requests: Sequence[BenchmarkRequest]) -> tuple[list[list[int]], int, int]:
    config = EngineConfig(
        num_blocks=KV_TOKENS // 16, max_model_len=loaded.model.max_model_len, token_budget=TOKEN_BUDGET
    )
    runner = ModelRunner(loaded.model, config.num_blocks, config.block_size)
    engine = Engine(config, runner, loaded.identity, lambda token_ids: "")
    for index, request in enumerate(requests):
        engine.add(str(index), request.prompt, SamplingParams(max_tokens=request.output_tokens, ignore_eos=True))
    finished: dict[str, Request] = {}
    while engine.has_work:
        finished.update((request.request_id, request) for request in engine.step())
    ordered = [finished[str(index)] for index in range(len(requests))]
    hits = sum(request.figures.prefix_hit_tokens for request in ordered)
    return [request.output_token_ids for request in ordered], engine.status().steps, hits


def _serve_static_batch(loaded: LoadedModel, requests: Sequence[BenchmarkRequest]) -> tuple[list[list[int]], int, int]:
    """transformers' generate on one left-padded batch. It runs until the longest output is complete."""
    model = AutoModelForCausalLM.from_pretrained(loaded.folder, dtype=loaded.model.dtype).eval()
    width = max(len(request.prompt) for request in requests)
    pad = model.generation_config.pad_token_id
    input_ids = torch.tensor([[pad] * (width - len(r.prompt)) + list(r.prompt) for r in requests])
    mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in requests])
    steps = max(request.output_tokens for request in requests)
    with torch.inference_mode():
        output = model.generate(
            input_ids, attention_mask=mask, max_new_tokens=steps, min_new_tokens=steps, do_sample=False
        )
    rows = output[:, width:].tolist()
    return [row[: request.output_tokens] for row, request in zip(rows, requests, strict=True)], steps, 0


SYSTEMS: Mapping[str, Serve] = {"pagemill": _serve_pagemill, "transformers-static": _serve_static_batch}
