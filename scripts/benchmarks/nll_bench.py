"""`scripts/bench nll`: the mean negative log-likelihood of text by types of weights and of KV cache."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pydoc_data.topics import topics

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer

from engine.kv_cache import KVCache, choose_kv_dtype
from engine.linears import Numerics, Weights
from engine.model_loader import DTYPES, PLAIN, LoadedModel, load_model
from engine.paged_model import PagedModel
from engine.probing import probe_request
from engine.request import Request
from engine.step_plan import ScheduledRequest, SchedulerOutput
from scripts.benchmarks.model_file import fetch_model

WINDOW_TOKENS = 2_048
CHUNK_TOKENS = 512
DECODED_TOKENS = 128  # the end of each window: decodes read the cache in other ways than chunks do
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """How a model is run."""

    dtype: str
    kv_dtype: str = "auto"
    numerics: Numerics = PLAIN


VARIANTS: Mapping[str, Variant] = {
    "float32": Variant("float32"),
    "bfloat16": Variant("bfloat16"),
    "bfloat16-invariant": Variant("bfloat16", numerics=Numerics(batch_invariant=True)),
    "bfloat16-weights-int8": Variant("bfloat16", numerics=Numerics(Weights.INT8)),
    "bfloat16-kv-int8": Variant("bfloat16", "int8"),
    "bfloat16-kv-fp8": Variant("bfloat16", "fp8"),
}


@click.command()
@click.option("--variant", "names", multiple=True, type=click.Choice(list(VARIANTS)), help="May be repeated.")
@click.option("--windows", "num_windows", type=click.IntRange(1, 200), default=10, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON line a variant, no table.")
def nll(names: tuple[str, ...], num_windows: int, as_json: bool) -> None:
    """Mean negative log-likelihood of real text, by variant, in windows of 2,048 tokens. Times are processor seconds.

    \b
    Examples:
      scripts/bench nll
      scripts/bench nll --variant bfloat16 --variant bfloat16-kv-int8
    """
    gguf = fetch_model()
    results: dict[str, tuple[float, float]] = {}
    num_tokens = 0
    for name in names or tuple(VARIANTS):
        variant = VARIANTS[name]
        loaded = load_model(
            str(gguf),
            dtype=DTYPES[variant.dtype],
            device=torch.device("cpu"),
            cache_dir=gguf.parent / "converted",
            numerics=variant.numerics,
        )
        windows = text_windows(loaded, num_windows, WINDOW_TOKENS)
        num_tokens = num_windows * (WINDOW_TOKENS - 1)
        begun = time.process_time()
        results[name] = mean_nll(loaded.model, windows, variant.kv_dtype), time.process_time() - begun
        click.echo(f"{name}: {results[name][0]:.5f}", err=True)
    _report(results, num_tokens, as_json=as_json)


def text_windows(loaded: LoadedModel, num_windows: int, window_tokens: int) -> list[list[int]]:
    """Return neighbouring runs of tokens of the language reference that ships with Python."""
    tokenizer = AutoTokenizer.from_pretrained(loaded.folder)
    text = "\n\n".join(topics[name] for name in sorted(topics))
    # Four characters a token are typical; ten are plenty.
    token_ids: list[int] = tokenizer(text[: 10 * num_windows * window_tokens]).input_ids
    return [token_ids[index * window_tokens :][:window_tokens] for index in range(num_windows)]


def mean_nll(
    model: PagedModel,
    windows: Sequence[Sequence[int]],
    kv_dtype: str = "auto",
    chunk_tokens: int = CHUNK_TOKENS,
    decoded_tokens: int = DECODED_TOKENS,
) -> float:
    """Return the mean over all tokens but each window's first. Windows are of one length; their last `decoded_tokens`
    are computed one by one, all windows in a step."""
    blocks_each, num_groups = -(-len(windows[0]) // BLOCK_SIZE), len(model.kv_groups)
    chosen = choose_kv_dtype(kv_dtype, model.dtype, model.head_dim, model.device)
    cache = KVCache(model.kv_shape(BLOCK_SIZE, chosen), blocks_each * len(windows) * num_groups, model.device)
    requests = [
        probe_request(window, range(index * blocks_each, (index + 1) * blocks_each), num_groups)
        for index, window in enumerate(windows)
    ]
    stop = len(windows[0]) - decoded_tokens
    total = 0.0
    for request in requests:
        for start in range(0, stop, chunk_tokens):
            total += _step_nll(model, cache, [request], start, min(start + chunk_tokens, stop))
    for start in range(stop, len(windows[0]) - 1):
        total += _step_nll(model, cache, requests, start, start + 1)
    return total / (len(windows) * (len(windows[0]) - 1))


def _step_nll(model: PagedModel, cache: KVCache, requests: Sequence[Request], start: int, stop: int) -> float:
    """Compute the requests' tokens [start, stop) and return the sum over the tokens that they predict."""
    shares = tuple(ScheduledRequest(request, start, stop - start) for request in requests)
    step = model.build_input(SchedulerOutput(shares, len(shares) * (stop - start), ()), cache)
    targets = [request.token_ids[start + 1 : stop + 1] for request in requests]
    rows = [index * (stop - start) + row for index, known in enumerate(targets) for row in range(len(known))]
    logits: Tensor = model.forward(replace(step, sample_rows=torch.tensor(rows, device=model.device)))
    wanted = torch.tensor([token for known in targets for token in known], device=model.device)
    return float(functional.cross_entropy(logits, wanted, reduction="sum"))


def _report(results: Mapping[str, tuple[float, float]], num_tokens: int, *, as_json: bool) -> None:
    first = next(iter(results))
    if as_json:
        for name, (value, cpu_s) in results.items():
            shown = {"variant": name, "tokens": num_tokens, "nll": round(value, 5), "cpu_s": round(cpu_s, 1)}
            print(json.dumps(shown))
        return
    table = Table("variant", "mean NLL", f"more than {first}", "CPU s")
    for name, (value, cpu_s) in results.items():
        table.add_row(name, f"{value:.5f}", f"{value - results[first][0]:+.5f}", f"{cpu_s:.1f}")
    console = Console()
    console.print(f"{num_tokens} tokens of Python's language reference, in windows of {WINDOW_TOKENS}")
    console.print(table)
