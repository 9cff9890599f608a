"""When a block is worth copying to the host's memory and back: where computing it again was measured to take longer."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum, auto

MEMORY = 0.9  # of a sum, at each new measurement: the last ten or so count
STALE_SECONDS = 60.0  # a measurement that old is no reason not to try again
MIN_CHUNK_TOKENS = 8  # a request, in a step that tells what a token of a prefill takes


class Direction(StrEnum):
    """Where a block is copied to."""

    OUT = auto()  # from the device to the host
    BACK = auto()


@dataclass(frozen=True, slots=True)
class CopyTime:
    """What copying some blocks took."""

    direction: Direction
    num_blocks: int
    seconds: float


class Rate:
    """Seconds a unit, from the newest measurements. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = self._units = 0.0
        self._measured_at = 0.0

    def note(self, num_units: int, seconds: float) -> None:
        self._seconds = self._seconds * MEMORY + seconds
        self._units = self._units * MEMORY + num_units
        self._measured_at = self._clock()

    @property
    def seconds_per_unit(self) -> float | None:
        """None where nothing was measured lately."""
        if not self._units or self._clock() - self._measured_at > STALE_SECONDS:
            return None
        return self._seconds / self._units


class OffloadPolicy:
    """Weighs copying a block against computing its tokens again. What was not measured lately is worth a try."""

    def __init__(self, tokens_per_block: float, clock: Callable[[], float]) -> None:
        self._tokens_per_block = tokens_per_block
        self._token = Rate(clock)
        self._copies = {direction: Rate(clock) for direction in Direction}

    def note_copies(self, time: CopyTime) -> None:
        self._copies[time.direction].note(time.num_blocks, time.seconds)

    def note_step(self, num_tokens: int, num_requests: int, seconds: float) -> None:
        """Take in what a step took, copies left out. Steps of decodes do not tell what recomputation takes."""
        if num_tokens >= MIN_CHUNK_TOKENS * num_requests:
            self._token.note(num_tokens, seconds)

    def spills(self) -> bool:
        """Whether the way out and back takes no longer than computing a block again."""
        out = self._copies[Direction.OUT].seconds_per_unit
        back = self._copies[Direction.BACK].seconds_per_unit
        return out is None or self._is_quicker(out + (out if back is None else back))

    def restores(self) -> bool:
        """Whether the way back takes no longer than computing a block again."""
        back = self._copies[Direction.BACK].seconds_per_unit
        return back is None or self._is_quicker(back)

    def _is_quicker(self, seconds: float) -> bool:
        token = self._token.seconds_per_unit
        return token is None or seconds <= token * self._tokens_per_block
