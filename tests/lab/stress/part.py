"""A part of `python -m lab.stress`: its subjects, its sizes, and the function that runs one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lab.stress.rows import StressFailure, StressRow

Size = Literal["change", "night", "release"]
SIZES: tuple[Size, ...] = ("change", "night", "release")


@dataclass(frozen=True)
class StressRun:
    """What one subject of a part is asked for.

    amount: cases, or seconds, as the part counts; only case `case` where that is not None
    models: files to work on besides those that the part makes itself
    tell: called with the number of cases done and of all, now and then
    """

    part: str
    subject: str
    amount: int
    seed: int
    case: int | None = None
    models: Sequence[Path] = ()
    tell: Callable[[int, int], None] = field(default=lambda done, total: None)

    @property
    def cases(self) -> range:
        """The numbers of the cases to run."""
        return range(self.amount) if self.case is None else range(self.case, self.case + 1)

    def replay(self, case: int) -> str:
        """Return the command that runs a case alone."""
        models = "".join(f" {path}" for path in self.models)
        name = f"{self.part}/{self.subject}"
        return f"python -m lab.stress{models} --part {name} --seed {self.seed} --case {case}"

    def failure(self, case: int, kind: str, text: str) -> StressFailure:
        """Return a failure of a case."""
        return StressFailure(case, kind, text, self.replay(case))

    def row(self, **given: object) -> StressRow:
        """Return the row of the subject."""
        return StressRow(self.part, self.subject, self.seed, **given)  # type: ignore[arg-type]

    def skipped(self, why: str) -> StressRow:
        """Return the row of a subject that cannot run here."""
        return self.row(skipped=why)


@dataclass(frozen=True)
class StressPart:
    """A part of the programme.

    counts: what the amount of a size counts: "cases", "seconds"
    amounts: of each size, for each subject or for every one ("")
    run: runs one subject; a case that goes wrong is a failure in the row, never an exception
    linux_only: whether it needs limits and signals of Linux
    """

    help: str
    subjects: Sequence[str]
    counts: str
    amounts: Mapping[str, Mapping[Size, int]]
    run: Callable[[StressRun], StressRow]
    linux_only: bool = True

    def amount(self, subject: str, size: Size) -> int:
        """Return how much of a subject a size runs."""
        return self.amounts.get(subject, self.amounts.get("", {}))[size]

    @property
    def unusable(self) -> str:
        """Why it cannot run on this system; "" where it can."""
        return "it needs Linux" if self.linux_only and sys.platform != "linux" else ""
