"""Names for the tensors of a file that is written: no two are the same."""

from __future__ import annotations


class FreshNames:
    """Gives names that it has not given before."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def fresh(self, wanted: str) -> str:
        """Return a name that no tensor has yet: the wanted one, or that with a number."""
        name, count = wanted or "value", 1
        while name in self._taken:
            count += 1
            name = f"{wanted or 'value'}_{count}"
        self._taken.add(name)
        return name
