"""KV groups: layers that keep the same tokens, and so have one block table for all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

MAX_GROUPS = 8  # of a model: each has a block table of its own, and an attention plan in every step
MOST_LEFT = 0.9  # of the KV memory of the longest sequence: who saves less than the rest is better off with one table


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Some of a model's layers. A block of a group has K and V of one run of tokens for all its layers.

    The blocks of all groups are of one size, so that they come from one pool: where a model has more sliding layers
    than full ones, say, the sliding ones are several groups, each of as many layers as the full one has; or of twice as
    many, where theirs are half as wide.
    """

    window: int | None  # tokens that its layers see, the newest included; None sees all
    layers: tuple[int, ...]  # indices of layers that have K and V of their own, in order


def together(windows: Mapping[int, int | None]) -> tuple[KVGroup]:
    """Return all layers as one group, which keeps what any of them sees. `windows` is by layer."""
    seen = set(windows.values())
    return (KVGroup(None if None in seen else max(one for one in seen if one is not None), tuple(windows)),)


def divide(
    windows: Mapping[int, int | None], longest: int, sizes: Mapping[int, int] | None = None
) -> tuple[KVGroup, ...]:
    """Return the groups of layers with which a sequence of `longest` tokens takes the least memory.

    `sizes` has what each layer's K or V of a token takes, in any unit; without it all take as much. Groups that are
    smaller than others leave a part of their blocks unused; that is part of the reckoning.
    """
    taken = dict.fromkeys(windows, 1) if sizes is None else sizes
    by_window: dict[int | None, list[int]] = {}
    for layer, window in windows.items():
        by_window.setdefault(window, []).append(layer)
    undivided = together(windows)
    largest, all_sizes = max(taken.values()), sorted({taken[layer] for layer in windows})
    rooms = sorted({size * number for size in all_sizes for number in range(1, len(windows) + 1)})
    choices = [_that_fit(by_window, taken, room) for room in rooms if room >= largest]
    few = [groups for groups in choices if len(groups) <= MAX_GROUPS]
    best = min(few, key=lambda groups: (_cost(groups, taken, longest), len(groups)), default=undivided)
    return best if _cost(best, taken, longest) <= MOST_LEFT * _cost(undivided, taken, longest) else undivided


def num_slid_blocks(window: int | None, num_computed_tokens: int, block_size: int) -> int:
    """Return how many leading blocks no token behind the computed ones sees."""
    if window is None:
        return 0
    return max(0, num_computed_tokens - window + 1) // block_size


def most_held(window: int | None, num_tokens: int, num_scheduled_tokens: int, block_size: int) -> int:
    """Return the blocks that a sequence of `num_tokens` tokens holds at most in a group, in steps of so many tokens."""
    whole = -(-num_tokens // block_size)
    if window is None:
        return whole
    # Neither the window's beginning nor the step's end need fall on a block's.
    return min(whole, (window + num_scheduled_tokens - 2) // block_size + 2)


def _that_fit(by_window: Mapping[int | None, list[int]], sizes: Mapping[int, int], room: int) -> tuple[KVGroup, ...]:
    """Return groups of layers whose sizes together are at most `room`; the last of each window may have fewer."""
    groups = []
    for window, layers in by_window.items():
        taken: list[int] = []
        for layer in layers:
            if sum(sizes[other] for other in taken) + sizes[layer] > room:
                groups.append(KVGroup(window, tuple(taken)))
                taken = []
            taken.append(layer)
        groups.append(KVGroup(window, tuple(taken)))
    return tuple(groups)


def _cost(groups: tuple[KVGroup, ...], sizes: Mapping[int, int], longest: int) -> int:
    """Return what a sequence of `longest` tokens holds: tokens times what a block has room for of each."""
    kept = (longest if group.window is None else min(longest, group.window) for group in groups)
    return max(sum(sizes[layer] for layer in group.layers) for group in groups) * sum(kept)
