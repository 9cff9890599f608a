"""`scripts/bench claims`: what articles on serving language models claim, beside what is so here."""

import json
import platform
import sys
from dataclasses import asdict

import click
import torch
from rich.console import Console
from rich.table import Table

from engine.model_loader import DTYPES, load_model
from scripts.benchmarks.claims import Claim, computed_claims
from scripts.benchmarks.claims_measured import Measurer
from scripts.benchmarks.model_file import fetch_model
from scripts.benchmarks.nll_bench import text_windows

WIDTH = 180  # columns, where there is no terminal
PROMPT_TOKENS = 40_000  # of real text, to cut prompts from


@click.command()
@click.option("--repeats", type=click.IntRange(1, 20), default=3, show_default=True, help="Runs of each measurement.")
@click.option("--computed-only", is_flag=True, help="Only the claims that are arithmetic.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a claim, no table.")
def claims(repeats: int, computed_only: bool, as_json: bool) -> None:
    """Each claim as a ratio, ours beside the article's, and where the article is wrong.

    SmolLM2-135M in bfloat16, greedy; what is compared runs in turn, and the median counts.

    \b
    Examples:
      scripts/bench claims
      scripts/bench claims --computed-only
    """
    found = list(computed_claims())
    if not computed_only:
        gguf = fetch_model()
        loaded = load_model(
            str(gguf), dtype=DTYPES["bfloat16"], device=torch.device("cpu"), cache_dir=gguf.parent / "converted"
        )
        (tokens,) = text_windows(loaded, 1, PROMPT_TOKENS)
        for claim in Measurer(loaded, tokens, repeats).claims():
            click.echo(f"measured: {claim.name}", err=True)
            found.append(claim)
    _report(found, as_json=as_json)


def _report(found: list[Claim], *, as_json: bool) -> None:
    if as_json:
        for claim in found:
            print(json.dumps(asdict(claim)))
        return
    table = Table("claim", "article", "its ratio", "ours", "found", "remark")
    for claim in found:
        table.add_row(
            claim.name, claim.claimed, _times(claim.claimed_ratio), _times(claim.ratio), claim.found, claim.remark
        )
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table)
    console.print(f"{platform.machine()}, {torch.get_num_threads()} threads; torch {torch.__version__}")


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"
