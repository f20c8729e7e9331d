"""Which versions of a model a repository serves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trireme.support.arguments import check_arguments
from trireme.support.errors import RunError


@dataclass(frozen=True, kw_only=True)
class VersionPolicy:
    """The versions to serve: the newest that load, or those named.

    latest: how many of the newest versions to serve; a version that does not load is left out, and
        the next older one is served in its place
    specific: the versions to serve instead, in any order
    Errors: RunError, for numbers below 1
    """

    latest: int = 1
    specific: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_arguments(VersionPolicy, vars(self), RunError)
        if self.latest < 1 or any(one < 1 for one in self.specific):
            raise RunError(f"{self}: counts and versions are whole numbers from 1")

    def candidates(self, found: Iterable[int]) -> list[int]:
        """Return the versions to try, the first to be served first."""
        newest = sorted(found, reverse=True)
        return [one for one in newest if one in self.specific] if self.specific else newest

    @property
    def most(self) -> int:
        """The most versions that are served at once."""
        return len(set(self.specific)) if self.specific else self.latest
