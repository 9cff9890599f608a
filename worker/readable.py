"""What people read: digits, sizes and lengths of time in the units that suit them, and text without its controls."""

import math
import re

# ANSI sequences (CSI, OSC and two-character ones), then control characters other than tab and newline, then the
# marks that reverse the direction of text: each could make a screen show something else than what was generated.
_CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]|[\u202a-\u202e\u2066-\u2069]"
)

_SPANS = ((86_400.0, "d", 3_600.0, "h"), (3_600.0, "h", 60.0, "min"), (60.0, "min", 1.0, "s"))


def without_controls(text: str) -> str:
    """Return a text without the characters that make a screen show something else than what is written."""
    return _CONTROLS.sub("", text)


def format_digits(value: float) -> str:
    """Return three significant digits, whole numbers and thousands in full: "0.0123", "12.5", "1,234"."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_bytes(size: float) -> str:
    """Return a size in the binary unit that suits it: "1.5 GiB"."""
    amount, units = size, ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(amount) >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.4g} {units[0]}"


def format_span(seconds: float) -> str:
    """Return a length of time in the units that suit it: "0.42 ms", "350 ms", "12.5 s", "3 min 20 s", "2 h 5 min"."""
    size = abs(seconds)
    if size < 0.9995:
        return f"{format_digits(seconds * 1000)} ms" if size else "0 s"
    if size < 59.95:
        return f"{format_digits(seconds)} s"
    length, name, smaller, smaller_name = next(
        span for span in _SPANS if size >= span[0] - span[2] / 2 or span is _SPANS[-1]
    )
    whole, rest = divmod(round(size / smaller), round(length / smaller))
    text = f"{whole:,} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return text if seconds > 0 else f"-{text}"
