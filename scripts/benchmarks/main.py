"""`scripts/bench`: ratios against peers, measured side by side in one run."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
import transformers
from rich.console import Console
from rich.table import Table

from scripts.benchmarks.queue_bench import queue
from scripts.benchmarks.systems import SYSTEMS, run_system

PEER = "transformers-static"
OURS = "pagemill"


@click.group()
def main() -> None:
    """Measure Pagemill against its peers."""


@main.command()
@click.option("--workload", type=click.Choice(["rag", "mixed"]), default="rag", show_default=True)
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True)
@click.option("--repeats", type=click.IntRange(1, 20), default=3, show_default=True, help="Runs of each system.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a run and one for the ratio, no table.")
def engine(workload: str, dtype: str, repeats: int, as_json: bool) -> None:
    """Our engine against transformers' static batch of 32: same model, prompts, output lengths, greedy.

    \b
    Example:
      scripts/bench engine --workload rag --repeats 3
    """
    model = _fetch_model()
    runs: dict[str, list[dict[str, Any]]] = {OURS: [], PEER: []}
    for repeat in range(repeats):
        for system in runs:  # alternating, so that a busy minute of the machine meets both
            click.echo(f"run {repeat + 1} of {repeats}: {system}", err=True)
            runs[system].append(_run_apart(system, workload, dtype, model))
    _report(runs, as_json=as_json)


@main.command(hidden=True)
@click.argument("system", type=click.Choice(list(SYSTEMS)))
@click.argument("workload")
@click.argument("dtype")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
def run_one(system: str, workload: str, dtype: str, model: Path, output: Path) -> None:
    """Run one system once, in this process, and write the result to a file."""
    result = run_system(system, workload, dtype, model, model.parent / "converted")
    output.write_text(json.dumps(result.as_json()))


def _fetch_model() -> Path:
    printed = subprocess.run([sys.executable, "scripts/fetch-model"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(printed.stdout.strip().splitlines()[-1])


def _run_apart(system: str, workload: str, dtype: str, model: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, "-m", "scripts.benchmarks.main", "run-one", system, workload, dtype]
        subprocess.run([*command, str(model), str(output)], check=True)
        result: dict[str, Any] = json.loads(output.read_text())
    return result


def _report(runs: dict[str, list[dict[str, Any]]], *, as_json: bool) -> None:
    seconds = {system: median(run["serve_s"] for run in results) for system, results in runs.items()}
    same = sum(a == b for a, b in zip(runs[OURS][0]["outputs"], runs[PEER][0]["outputs"], strict=True))
    summary = {
        "ratio": round(seconds[PEER] / seconds[OURS], 2),
        "identical_outputs": same,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if as_json:
        for result in (run for results in runs.values() for run in results):
            print(json.dumps({key: value for key, value in result.items() if key != "outputs"}))
        print(json.dumps(summary))
        return
    table = Table("system", "seconds (median)", "all runs", "output tokens/s", "steps", "prefix hits", "peak RSS, MiB")
    for system, results in runs.items():
        first = results[0]
        table.add_row(
            system,
            f"{seconds[system]:.1f}",
            ", ".join(f"{run['serve_s']:.1f}" for run in results),
            f"{first['output_tokens'] / seconds[system]:.0f}",
            str(first["steps"]),
            str(first["prefix_hit_tokens"]),
            f"{max(run['peak_rss_bytes'] for run in results) / 2**20:.0f}",
        )
    console = Console()
    first = runs[OURS][0]
    console.print(
        f"{first['workload']}: {first['requests']} requests, {first['prompt_tokens']} prompt tokens, "
        f"{first['output_tokens']} output tokens, {first['dtype']}"
    )
    console.print(table)
    console.print(f"{summary['ratio']} times {PEER}; {same} of {first['requests']} outputs identical")
    console.print(f"{summary['machine']}; torch {summary['torch']}, transformers {summary['transformers']}")


main.add_command(queue)


if __name__ == "__main__":
    main()
