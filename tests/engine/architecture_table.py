"""The tables of docs/architectures.md: each row is what a test found, which fails where the page says otherwise.

`pytest tests/engine/test_architectures.py --write-docs` writes them.
"""

from collections.abc import Collection
from pathlib import Path

from torch import nn

from engine.attention_patches import PatchedAttention
from engine.fused import RMSNorm, Siblings
from engine.fused_layer import FusedLayer
from engine.kv_layout import AttentionLayer
from engine.model_loader import LoadedModel

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architectures.md"
EACH_WAY = "each way"
AT_ONCE = "all at once"
REFUSED_TITLE = "| refused | reason |"
SERVED_TITLE = "| model | attention | KV heads | fused | tried |"


def served_row(name: str, loaded: LoadedModel, tried: str) -> str:
    """Return the row of a model that was tried."""
    model = loaded.model
    kinds = ", ".join(dict.fromkeys(_kind(layer) for layer in model.layers))
    modules = list(model.model.modules())
    if any(isinstance(module, PatchedAttention) for module in modules):
        kinds += "; patched" + (" (ALiBi)" if _has_slopes(modules) else "")
    if any(layer.source != index for index, layer in enumerate(model.layers)):
        kinds += "; K and V shared between layers"
    parts = (("layer", FusedLayer), ("projections", Siblings), ("norms", RMSNorm))
    fused = ", ".join(part for part, kind in parts if any(isinstance(module, kind) for module in modules))
    heads = ", ".join(dict.fromkeys(f"{layer.num_kv_heads} of {layer.num_heads}" for layer in model.layers))
    return f"| {name} | {kinds} | {heads} | {fused or 'nothing'} | {tried} |"


def _kind(layer: AttentionLayer) -> str:
    return "full" if layer.window is None else "sliding"


def _has_slopes(modules: Collection[nn.Module]) -> bool:
    """Whether patched attention adds biases: Falcon's does in some models only."""
    patched = [module for module in modules if isinstance(module, PatchedAttention)]
    biased = [module for module in patched if hasattr(module, "slopes")]
    return any(type(module).__name__ != "FalconAttention" or module.original.config.alibi for module in biased)


def hold_row(title: str, row: str, *, write: bool) -> None:
    """Assert that the page has a row in the table of this title, or write it there."""
    if write:
        name = _name(row)
        _write(title, [*(other for other in rows(title) if _name(other) != name), row])
    assert row in rows(title), f"docs/architectures.md is stale: {row}"


def hold_names(title: str, names: Collection[str], *, write: bool) -> None:
    """Assert that a table has a row for each of these names and no other, or drop the others."""
    if write:
        _write(title, [row for row in rows(title) if _name(row) in names])
    assert [_name(row) for row in rows(title)] == sorted(names), "docs/architectures.md is stale"


def rows(title: str) -> list[str]:
    """Return the rows of the table of this title."""
    lines = PAGE.read_text("utf-8").splitlines()
    start = lines.index(title) + 2  # behind the line that rules the title off
    stop = next((index for index in range(start, len(lines)) if not lines[index].startswith("|")), len(lines))
    return lines[start:stop]


def _write(title: str, new: list[str]) -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    start = lines.index(title) + 2
    lines[start : start + len(rows(title))] = sorted(new, key=_name)
    PAGE.write_text("\n".join(lines) + "\n", "utf-8")


def _name(row: str) -> str:
    return row.split("|")[1].strip()
