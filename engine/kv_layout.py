"""Where a model's K and V lie in blocks: its layers, the lanes of a block, each layer's place in them. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.kv_groups import KVGroup, divide, together


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """The attention of one decoder layer."""

    num_heads: int  # query heads
    num_kv_heads: int
    head_dim: int  # of queries and keys; narrower values are stored padded to it
    window: int | None  # tokens that a query sees, itself included; None sees all
    source: int  # index of the layer whose K and V it reads: its own, unless they are shared


@dataclass(frozen=True, slots=True)
class Lane:
    """A part of all blocks that is one piece of memory: for each token numbers, K's and V's each, and scales."""

    num_heads: int
    width: int  # numbers of a head
    num_scales: int  # where they are quantised


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layer's K and V lie: their lane, and how many numbers and scales of a token come before them in it."""

    lane: int
    num_numbers: int = 0
    num_scales: int = 0


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How blocks are divided among the layers of a group."""

    layers: tuple[AttentionLayer, ...]
    groups: tuple[KVGroup, ...]  # as `groups_of` returns them

    @property
    def is_mixed(self) -> bool:
        """Whether there are groups, and layers differ in width or KV heads: the layers of a group then lie side by side
        in one lane, in each block for itself, so that a block is the same memory whichever group has it."""
        shapes = {(self.layers[i].num_kv_heads, self.layers[i].head_dim) for group in self.groups for i in group.layers}
        return len(self.groups) > 1 and len(shapes) > 1

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """A block's parts: one with room for each layer of a group, or, where shapes are mixed, one for all of them."""
        by_group = [[self.layers[index] for index in group.layers] for group in self.groups]
        if self.is_mixed:
            width = max(sum(layer.num_kv_heads * layer.head_dim for layer in of) for of in by_group)
            return (Lane(1, width, max(sum(layer.num_kv_heads for layer in of) for of in by_group)),)
        largest = max(by_group, key=len)
        return tuple(Lane(layer.num_kv_heads, layer.head_dim, layer.num_kv_heads) for layer in largest)

    @property
    def places(self) -> dict[int, tuple[int, Place]]:
        """The group of each layer that has K and V of its own, and where they lie."""
        found: dict[int, tuple[int, Place]] = {}
        for number, group in enumerate(self.groups):
            num_numbers = num_scales = 0
            for lane, index in enumerate(group.layers):
                found[index] = number, Place(0, num_numbers, num_scales) if self.is_mixed else Place(lane)
                layer = self.layers[index]
                num_numbers += layer.num_kv_heads * layer.head_dim
                num_scales += layer.num_kv_heads
        return found

    def bytes_per_slot(self, element_bytes: int, scale_bytes: int) -> int:
        """Return the bytes of K and V of one slot of a block, with scales of `scale_bytes`, 0 where there are none."""
        sizes = (lane.num_heads * lane.width * element_bytes + lane.num_scales * scale_bytes for lane in self.lanes)
        return 2 * sum(sizes)


def groups_of(layers: Sequence[AttentionLayer], longest: int, *, may_mix: bool = True) -> tuple[KVGroup, ...]:
    """Return the KV groups of a model whose sequences have up to `longest` tokens.

    Unless blocks `may_mix` shapes, layers of different widths or numbers of KV heads are one group.
    """
    readers: dict[int, list[int | None]] = {}
    for layer in layers:
        readers.setdefault(layer.source, []).append(layer.window)
    windows = {
        index: None if None in seen else max(w for w in seen if w is not None) for index, seen in readers.items()
    }
    shapes = {index: (layers[index].num_kv_heads, layers[index].head_dim) for index in windows}
    if len(set(shapes.values())) > 1 and not may_mix:
        return together(windows)
    return divide(windows, longest, {index: heads * width for index, (heads, width) in shapes.items()})
