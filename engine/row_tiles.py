"""Linear layers whose result for a row does not depend on how many rows there are.

A matrix product takes another kernel, and so another order of addition, from some number of rows on: which numbers
agree differs from machine to machine, so it is tried when a model is loaded. Rows are then computed in tiles of sizes
that agree, the last one padded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # rows of a tile
TRIED_ROWS = 32  # at each size
CALL_ROWS = 128  # a call costs about as much more, whatever its rows: the weights are read
ELEMENTS_OF_ONE_THREAD = 32768  # torch gives the elements of smaller tensors to one thread, in order
EVEN_ELEMENTS = 64  # so many are computed alike; a rest of fewer may be computed by another formula

RowWise = Callable[[Tensor], Tensor]
MakeLayer = Callable[[Tensor], RowWise]


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows [start, stop), computed as `size` rows."""

    start: int
    stop: int
    size: int


@cache
def tiles_for(num_rows: int, sizes: tuple[int, ...]) -> tuple[Tile, ...]:
    """Return the cheapest tiles of ascending `sizes`, as far as that is known, for so many rows."""
    tiles = []
    start = 0
    while start < num_rows:
        size = _next_size(num_rows - start, sizes)
        tiles.append(Tile(start, min(start + size, num_rows), size))
        start += size
    return tuple(tiles)


def _next_size(num_rows: int, sizes: tuple[int, ...]) -> int:
    """Return the size that covers all rows if that is cheaper than several tiles, else the largest that they fill."""
    covering = next((size for size in sizes if size >= num_rows), None)
    filled = max((size for size in sizes if size <= num_rows), default=None)
    if filled is None or covering is None:
        size = covering if filled is None else filled
        assert size is not None, "there is a size"
        return size
    equal_tiles = -(-num_rows // filled) * (CALL_ROWS + filled)
    rest = next(size for size in sizes if size >= num_rows - filled)
    return covering if CALL_ROWS + covering <= min(equal_tiles, 2 * CALL_ROWS + filled + rest) else filled


def _cost_of(num_rows: int, sizes: tuple[int, ...]) -> int:
    return sum(CALL_ROWS + tile.size for tile in tiles_for(num_rows, sizes))


def agreeing_sizes(make: MakeLayer, weight: Tensor) -> tuple[int, ...]:
    """Return the sizes of tiles, ascending, at which a layer gives each row the same bits, in any place of a tile.

    `make` returns a layer with another weight of the size and type of `weight`. Here the products of each sum cancel,
    so that nothing but rounding is left, in which any other order of addition shows. Of several such sets of sizes the
    one that is cheapest over steps of many sizes is taken.
    """
    num_outputs, num_columns = weight.shape
    layer = make(_cancelling(num_outputs, num_columns, 1).to(weight))
    rows = _cancelling(max(SIZES), num_columns, 0).to(weight)
    sets: list[tuple[Tensor, list[int]]] = []
    with torch.inference_mode():
        for size in SIZES:
            tried, shift = rows[: max(size, TRIED_ROWS)], 1 if size <= 2 else size // 2 + 1
            found = torch.cat([layer(tile) for tile in tried.split(size)])
            moved = torch.cat([layer(tile) for tile in tried.roll(shift, dims=0).split(size)])
            if not torch.equal(found.roll(shift, dims=0), moved):
                continue
            known = next((sizes for bits, sizes in sets if torch.equal(bits, found[:TRIED_ROWS])), None)
            if known is None:
                sets.append((found[:TRIED_ROWS], [size]))
            else:
                known.append(size)
    return min((tuple(sizes) for _, sizes in sets), key=_waste)


def _cancelling(num_rows: int, num_columns: int, odd: int) -> Tensor:
    """Return random rows whose second half repeats the first, negated where `odd` is 1: products of the two cancel."""
    generator = torch.Generator().manual_seed(odd)
    half = torch.randn(num_rows, num_columns // 2, generator=generator)
    half *= torch.exp2(torch.randint(-8, 9, half.shape, generator=generator))  # or many sums would need no rounding
    return functional.pad(torch.cat((half, half * (-1) ** odd), dim=1), (0, num_columns % 2))


def _waste(sizes: tuple[int, ...]) -> float:
    """Return how much more tiles of these sizes cost than tiles of any size, over steps of many sizes."""
    return sum(_cost_of(num_rows, sizes) / _cost_of(num_rows, SIZES) for num_rows in SIZES)


class RowTiles(nn.Module):
    """A layer that computes each row by itself, run on tiles of rows."""

    def __init__(self, layer: nn.Module, sizes: Sequence[int]) -> None:
        super().__init__()
        self.layer = layer
        self.sizes = tuple(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., num_columns]."""
        rows = x.reshape(-1, x.shape[-1])
        outputs = []
        for tile in tiles_for(rows.shape[0], self.sizes):
            part = rows[tile.start : tile.stop]
            missing = tile.start + tile.size - tile.stop
            output = self.layer(functional.pad(part, (0, 0, 0, missing)) if missing else part)
            outputs.append(output[: tile.stop - tile.start])
        whole = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return whole.view(*x.shape[:-1], whole.shape[-1])


class EvenActivation(nn.Module):
    """An activation on the CPU that computes every element by the same formula.

    Torch computes the elements that fill no vector at the end of a run, and of a thread's part of it, by another one.
    """

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., num_columns]."""
        width = x.shape[-1]
        rows = x.reshape(-1, width)
        if width % EVEN_ELEMENTS:
            rows = functional.pad(rows, (0, -width % EVEN_ELEMENTS))
        num_rows = max(1, (ELEMENTS_OF_ONE_THREAD - 1) // rows.shape[1])
        parts = [self.activation(part.contiguous()) for part in rows.split(num_rows)]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole[:, :width].reshape(x.shape)


def is_uneven(activation: RowWise, dtype: torch.dtype) -> bool:
    """Return whether the activation computes some element otherwise when it is alone."""
    elements = torch.linspace(-9, 9, 64 * EVEN_ELEMENTS, dtype=dtype)
    with torch.inference_mode():
        alone = torch.cat([activation(element.clone()) for element in elements.split(1)])
        return not torch.equal(activation(elements), alone)
