"""`python -m lab.stress`: run parts of the programme of faults, or one case of a part again."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lab.stress import faults, mutants, overload, races, soak
from lab.stress.part import SIZES, Size, StressPart, StressRun
from lab.stress.rows import StressRow, markdown
from trireme.support.errors import RunError, TriremeError
from trireme.tools.number_options import MOST_SEED, whole
from trireme.tools.options import Argument, add_json, argument
from trireme.tools.output import emit
from trireme.tools.progress import Progress
from trireme.version import __version__

PARTS: Mapping[str, StressPart] = {
    "mutants": mutants.PART,
    "faults": faults.PART,
    "races": races.PART,
    "overload": overload.PART,
    "soak": soak.PART,
}
MOST_CASES = 100_000_000

ARGUMENTS: tuple[Argument, ...] = (
    argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="model files to work on besides those that each part makes",
    ),
    argument(
        "--part",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"parts to run, or PART/SUBJECT (default: all); parts: {', '.join(PARTS)}",
    ),
    argument(
        "--size",
        choices=SIZES,
        default="change",
        help="how much: minutes for a change, hours for a night, more for a release "
        "(default: change)",
    ),
    argument(
        "--seed",
        type=whole(0, MOST_SEED),
        default=0,
        metavar="N",
        help="seed of all cases (default: 0)",
    ),
    argument(
        "--case",
        type=whole(0, MOST_CASES),
        metavar="N",
        help="run one case of one PART/SUBJECT again",
    ),
    argument(
        "--amount",
        type=whole(1, MOST_CASES),
        metavar="N",
        help="cases of each subject, or seconds where it runs for a time (default: the size's)",
    ),
    argument("--report", metavar="FILE", help="write the rows as a Markdown table"),
    argument("--list", action="store_true", help="list the parts, their subjects and sizes"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; 2 is a wrong request."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.stress", description="Try to break the engine in seeded parts."
    )
    for flags, about in ARGUMENTS:
        parser.add_argument(*flags, **about)
    add_json(parser)
    try:
        return stress(parser.parse_intermixed_args(arguments))
    except TriremeError as error:
        parser.error(str(error))


def stress(options: argparse.Namespace) -> int:
    """Run the chosen parts; the exit code is 1 if a case failed or a bar was missed."""
    if options.list:
        lines = list(_listed())
        emit(options, {"parts": lines}, "\n".join(lines))
        return 0
    chosen = choose(options.part)
    if options.case is not None and len(chosen) != 1:
        raise RunError("--case is a case of one subject", fix="--part PART/SUBJECT")
    rows = [run_subject(PARTS[part], part, subject, options) for part, subject in chosen]
    about = about_run(options)
    if options.report:
        Path(options.report).write_text(markdown(rows, about))
    text = "\n".join(line for row in rows for line in row.lines())
    emit(options, {"about": about, "rows": [row.to_json() for row in rows]}, text)
    return 0 if all(row.is_ok for row in rows) else 1


def choose(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the subjects that are asked for as (part, subject), in the order of the programme.

    Errors: RunError, if there is no such part or subject
    """
    known = [(part, subject) for part in PARTS for subject in PARTS[part].subjects]
    if unknown := set(names) - {*PARTS, *map("/".join, known)}:
        raise RunError(
            f"there is no part {min(unknown)!r}",
            facts=[f"parts: {', '.join(map('/'.join, known))}"],
        )
    if not names:
        return known
    return [one for one in known if one[0] in names or "/".join(one) in names]


def run_subject(
    part: StressPart, name: str, subject: str, options: argparse.Namespace
) -> StressRow:
    """Run one subject and say how long it took."""
    progress, what = Progress(), f"{name}/{subject}"
    progress(what)
    size: Size = options.size
    asked = StressRun(
        name,
        subject,
        options.amount or part.amount(subject, size),
        options.seed,
        options.case,
        tuple(map(Path, options.models)),
        partial(progress, what),
    )
    began_s = time.perf_counter()
    try:
        row = asked.skipped(part.unusable) if part.unusable else part.run(asked)
    finally:
        progress.done()
    return replace(row, seconds=time.perf_counter() - began_s)


def about_run(options: argparse.Namespace) -> str:
    """Return the sentence that says what ran where."""
    size = f"{options.amount:,} a subject" if options.amount else f"size {options.size}"
    return (
        f"trireme {__version__}, {time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {size}, seed {options.seed}."
    )


def _listed() -> Iterator[str]:
    for name, part in PARTS.items():
        yield f"{name}: {part.help}"
        for subject in part.subjects:
            amounts = ", ".join(f"{part.amount(subject, size):,} ({size})" for size in SIZES)
            yield f"  {name}/{subject}: {part.counts}: {amounts}"
