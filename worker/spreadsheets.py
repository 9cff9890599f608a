"""Cells that spreadsheet programs take for text and nothing else."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def defused(cell: str) -> str:
    """Return a text as a CSV cell: an apostrophe stands before what a spreadsheet would run as a formula."""
    return f"'{cell}" if cell.startswith(FORMULA_STARTS) else cell
