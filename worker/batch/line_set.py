"""A set of line numbers, a bit each: a file of a million lines takes an eighth of a megabyte."""

from collections.abc import Iterator


class LineSet:
    """Line numbers, from 1."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, line: int) -> bool:
        place, bit = divmod(line, 8)
        return place < len(self._bits) and bool(self._bits[place] >> bit & 1)

    def __iter__(self) -> Iterator[int]:
        """Yield the lines, rising."""
        for place, byte in enumerate(self._bits):
            yield from (8 * place + bit for bit in range(8) if byte >> bit & 1)

    def add(self, line: int) -> None:
        """Add a line; one that is there is no more there than before."""
        if line in self:
            return
        place, bit = divmod(line, 8)
        if place >= len(self._bits):
            self._bits.extend(bytes(place + 1 - len(self._bits)))
        self._bits[place] |= 1 << bit
        self._size += 1

    def discard(self, line: int) -> None:
        """Remove a line, if it is there."""
        if line in self:
            place, bit = divmod(line, 8)
            self._bits[place] &= ~(1 << bit)
            self._size -= 1
