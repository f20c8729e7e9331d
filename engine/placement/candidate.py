"""A placement that was compared with the one chosen: what it is called, its kind, its score."""

from __future__ import annotations

from typing import Literal

from trireme.support.records import dataclass

CandidateKind = Literal["single", "start", "search", "proof"]
"""One device alone, another start of the search, what the search found, what a proof found."""


@dataclass(frozen=True)
class Candidate:
    """A placement that was compared; value: of the objective."""

    name: str
    kind: CandidateKind
    value: float
