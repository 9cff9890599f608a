"""How many tokens each request drafts in a step: as many as make tokens come faster than without drafts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MIN_SPEEDUP = 1.05  # expected, below which nothing is drafted: estimates are only estimates


@dataclass(frozen=True, slots=True)
class Chance:
    """What a request could draft."""

    num_tokens: int
    rate: float  # probability that a drafted token comes true, given those before it in the draft


@dataclass(frozen=True, slots=True)
class Allotment:
    """How many tokens to draft, by the keys of the chances; none where it would not pay."""

    num_tokens: Mapping[str, int] = field(default_factory=dict)
    speedup: float = 1.0  # expected: how many times as many tokens come in the same time as without drafts


def allot(
    chances: Mapping[str, Chance],
    num_requests: int,
    room: int,
    checking_ratio: Callable[[int], float],
    round_ratio: float = 0.0,
) -> Allotment:
    """Return what lets a step of `num_requests` give most tokens a second, with at most `room` drafted.

    The token that a request drafts in place j comes true with probability rate**j; the likeliest of all requests are
    taken. `checking_ratio` returns how many times as long a step takes with that number of drafted tokens as without,
    drafting left out: each place takes a round of the drafter, `round_ratio` times as long as a step without drafts.
    """
    likeliest = sorted(
        (
            (chance.rate**place, place, key)
            for key, chance in chances.items()
            for place in range(1, chance.num_tokens + 1)
        ),
        key=lambda token: -token[0],
    )
    ratios = [checking_ratio(number) for number in range(1, min(len(likeliest), room) + 1)]
    most = max((chance.num_tokens for chance in chances.values()), default=0)
    best, number, depth = MIN_SPEEDUP, 0, 0
    # Where rounds cost nothing, what is best within some number of rounds is no better than what is best of all.
    for num_rounds in range(1, most + 1) if round_ratio else (most,):
        expected = float(num_requests)
        within = (probability for probability, place, _ in likeliest if place <= num_rounds)
        for taken, (ratio, probability) in enumerate(zip(ratios, within, strict=False), 1):
            expected += probability
            speedup = expected / num_requests / (ratio + num_rounds * round_ratio)
            if speedup > best:
                best, number, depth = speedup, taken, num_rounds
    if not number:
        return Allotment()
    allotted: dict[str, int] = {}
    for _, _, key in [token for token in likeliest if token[1] <= depth][:number]:
        allotted[key] = allotted.get(key, 0) + 1
    return Allotment(allotted, best)
