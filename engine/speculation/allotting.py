"""How many tokens each request drafts in a step: as many as make tokens come faster than without drafts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

MIN_SPEEDUP = 1.05  # expected, below which nothing is drafted: estimates are only estimates


@dataclass(frozen=True, slots=True)
class Chance:
    """What a request could draft."""

    num_tokens: int
    rate: float  # probability that a drafted token comes true, given those before it in the draft


def allot(
    chances: Mapping[str, Chance], num_requests: int, room: int, cost_ratio: Callable[[int], float]
) -> dict[str, int]:
    """Return how many tokens to draft, by the keys of `chances`; nothing where it would not pay.

    The token that a request drafts in place j comes true with probability rate**j. The likeliest tokens of all requests
    are taken, up to the number that lets a step of `num_requests` give most tokens a second. `cost_ratio` returns how
    many times as long a step takes with that number of drafted tokens as without; at most `room` are drafted.
    """
    likeliest = sorted(
        ((chance.rate**place, key) for key, chance in chances.items() for place in range(1, chance.num_tokens + 1)),
        key=lambda token: -token[0],
    )[: max(0, room)]
    best, taken = num_requests * MIN_SPEEDUP, 0
    expected = float(num_requests)
    for number, (probability, _) in enumerate(likeliest, 1):
        expected += probability
        pace = expected / cost_ratio(number)
        if pace > best:
            best, taken = pace, number
    allotted: dict[str, int] = {}
    for _, key in likeliest[:taken]:
        allotted[key] = allotted.get(key, 0) + 1
    return allotted
