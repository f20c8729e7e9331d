"""The reports of the parts of `python -m lab.stress`: typed rows, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SHOWN_FAILURES = 5
"""Failures of a row that the text shows; the JSON has all of them."""
SHOWN_TEXT = 300


@dataclass(frozen=True)
class StressFailure:
    """A case that went wrong.

    kind: "signal", "wrong", "untyped" and the like
    replay: the command that runs the case alone
    """

    case: int
    kind: str
    text: str
    replay: str


@dataclass(frozen=True)
class Figure:
    """A measured number and the bar that it must keep to; None is no bar.

    sense: whether the number may be at most or at least the bar
    """

    name: str
    value: float
    unit: str = ""
    bar: float | None = None
    sense: Literal["most", "least"] = "most"

    @property
    def is_met(self) -> bool:
        """Whether the number keeps to its bar."""
        if self.bar is None:
            return True
        return self.value <= self.bar if self.sense == "most" else self.value >= self.bar

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.bar is None:
            return f"{self.name} {self.value:.4g}{unit}"
        missed = "" if self.is_met else ": MISSED"
        return f"{self.name} {self.value:.4g}{unit} (at {self.sense} {self.bar:.4g}{missed})"


@dataclass(frozen=True)
class StressRow:
    """The result of one subject of a part.

    cases: how many ran
    ends: how many cases ended how
    skipped: why nothing ran; "" where something did
    """

    part: str
    subject: str
    seed: int
    cases: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)
    figures: Sequence[Figure] = ()
    failures: Sequence[StressFailure] = ()
    skipped: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """What `--part` selects it by."""
        return f"{self.part}/{self.subject}"

    @property
    def is_ok(self) -> bool:
        """Whether no case failed and every bar is met."""
        return not self.failures and all(one.is_met for one in self.figures)

    @property
    def verdict(self) -> str:
        """One word."""
        return "skipped" if self.skipped else "ok" if self.is_ok else "FAILED"

    @property
    def details(self) -> str:
        """Ends and figures in one line."""
        if self.skipped:
            return self.skipped
        ends = [f"{count:,} {kind}" for kind, count in sorted(self.ends.items(), key=_most_first)]
        return "; ".join([*ends, *map(str, self.figures)])

    def lines(self) -> list[str]:
        """Return the row as text, with the command that replays each failure shown."""
        took = f"{self.seconds:.0f} s"
        lines = [f"{self.verdict:8} {self.name:22} {self.cases:>9,} cases  {took:>7}"]
        lines += [f"{'':9}{self.details}"] if self.details else []
        for one in self.failures[:SHOWN_FAILURES]:
            text = " ".join(one.text.split())[-SHOWN_TEXT:]
            lines += [f"{'':9}case {one.case}: {one.kind}: {text}", f"{'':9}  {one.replay}"]
        if len(self.failures) > SHOWN_FAILURES:
            lines.append(f"{'':9}and {len(self.failures) - SHOWN_FAILURES} more failures")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "part": self.part,
            "subject": self.subject,
            "seed": self.seed,
            "verdict": self.verdict,
            "cases": self.cases,
            "ends": dict(self.ends),
            "figures": [{**vars(one), "is_met": one.is_met} for one in self.figures],
            "failures": [vars(one) for one in self.failures],
            "skipped": self.skipped,
            "seconds": self.seconds,
        }


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def markdown(rows: Iterable[StressRow], about: str) -> str:
    """Return a table of the rows under a sentence about the run."""
    lines = [about, "", "| part | cases | result | figures |", "|---|---|---|---|"]
    lines += [f"| {row.name} | {row.cases:,} | {row.verdict} | {row.details} |" for row in rows]
    return "\n".join(lines) + "\n"
