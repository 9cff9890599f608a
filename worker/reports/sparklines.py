"""Lines of a few characters that show a figure over time."""

from collections.abc import Sequence

BLOCKS, NOTHING = "▁▂▃▄▅▆▇█", "·"
ASCII, ASCII_NOTHING = "_-~=+*%#", "."


def sparkline(values: Sequence[float | None], encoding: str) -> str:
    """Return a character for each value, higher for more, from zero to the largest; a dot for None.

    Block characters where `encoding` has them, ASCII elsewhere.
    """
    levels, nothing = (BLOCKS, NOTHING) if _can_encode(BLOCKS + NOTHING, encoding) else (ASCII, ASCII_NOTHING)
    known = [value for value in values if value is not None]
    top = max(known, default=0.0)
    if top <= 0:
        return "".join(nothing if value is None else levels[0] for value in values)
    last = len(levels) - 1
    return "".join(nothing if value is None else levels[max(0, round(value / top * last))] for value in values)


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
