"""How notebooks, consoles and narrow screens show objects, lines and names."""

from __future__ import annotations

import textwrap


class Shown:
    """Shows the text of `str` in a notebook, and its first line as `repr`."""

    def __repr__(self) -> str:
        first = str(self).partition("\n")[0]
        return f"<{type(self).__name__}: {first}>"

    def _repr_html_(self) -> str:
        import html  # three milliseconds, for notebooks alone

        return f"<pre>{html.escape(str(self))}</pre>"


WIDTH = 100
"""The most columns of a line of a summary."""


def clipped(line: str, width: int | None = WIDTH) -> str:
    """Return a line cut to a width, with an ellipsis where something is left out; None: whole."""
    if width is None or len(line) <= width:
        return line
    return f"{line[: width - 3].rstrip()}..."


def wrapped(text: str, width: int | None, indent: str = "  ") -> list[str]:
    """Return an indented sentence as lines of a width; None: as one line."""
    if width is None:
        return [f"{indent}{text}"]
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def clipped_name(name: str, width: int) -> str:
    """Return the end of a name, which tells it from others of its model."""
    return name if len(name) <= width else f"...{name[3 - width :]}"
