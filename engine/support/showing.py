"""How notebooks and consoles show an object whose `str` is a screen of text."""

from __future__ import annotations


class Shown:
    """Shows the text of `str` in a notebook, and its first line as `repr`."""

    def __repr__(self) -> str:
        first = str(self).partition("\n")[0]
        return f"<{type(self).__name__}: {first}>"

    def _repr_html_(self) -> str:
        import html  # three milliseconds, for notebooks alone

        return f"<pre>{html.escape(str(self))}</pre>"
