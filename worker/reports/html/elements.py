"""HTML and SVG elements. Everything that is not markup already is escaped, and loses its control characters."""

from markupsafe import Markup, escape

from worker.readable import without_controls


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element. `class_` is the attribute `class`, `data_x` is `data-x`; one of None is left out."""
    written = Markup()
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        written += Markup(" {}").format(key) if value is True else Markup(' {}="{}"').format(key, harmless(value))
    return Markup("<{name}{attributes}>{children}</{name}>").format(
        name=Markup(name), attributes=written, children=joined(*children)
    )


def joined(*parts: object) -> Markup:
    """Return the parts one after another, escaped where they are not markup."""
    return Markup().join(harmless(part) for part in parts)


def harmless(value: object) -> Markup:
    """Return a value as markup that shows it and does nothing else."""
    return value if isinstance(value, Markup) else escape(without_controls(str(value)))


def percent(part: float) -> str:
    """Return a share from 0 to 1 as an SVG length, short: "12.34%"."""
    return f"{part * 100:.2f}".rstrip("0").rstrip(".") + "%"
