"""How many small bugs the tests notice: run them against seeded mutants of engine/ and devices/.

    python -m lab.mutation map FOLDER [--count 200] [--seed 12]   which test runs which line
    python -m lab.mutation reuse OLDER FOLDER                     the map of an older tree
    python -m lab.mutation run FOLDER [--only 0:20] [--budget 20] tests against each mutant
    python -m lab.mutation sweep FOLDER                           survivors against sweeps
    python -m lab.mutation report FOLDER

`map` runs the default suite once and notes which tests come by each mutant, and which of them pass.
`run` makes one mutant after another, runs the tests that come by and stops at the first failure.
Tests run in forks of one process that has collected them all; a mutant that an import comes by
takes a new process. Every few mutants it runs the tests that failed without a mutant: where one
fails or skips, it is left out and its mutants run again. `sweep` gives survivors the sweeps of the
functions that come by: default suite and sweeps are what the suite once was.

Verdicts: killed; survived (every test that comes by passed); unresolved (those that the budget pays
for passed: a run with more --budget tries them again); not covered; gone (the statement is no
longer there). FOLDER/equivalent.json is written by hand: why no test can notice a mutant, by its
number. Rows go to FOLDER/results.jsonl as they are found, so a run can be stopped and taken up
again; --minutes stops it by itself. The tree must not change while it runs: use a worktree of its
own.
"""

import argparse
import collections
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

import pytest

from lab.mutation import limits as runs
from lab.mutation import mutant_map, mutants
from lab.mutation.warm import Warm

BUDGET_S = 20.0
"""What the tests chosen for a mutant usually take, in CPU seconds; they may take twice that."""
BATCH = 10
"""Mutants after which their kills are confirmed."""
SWEEP_S = 120.0
"""CPU seconds of a survivor's sweeps."""
ALL = "not timed and (sweep or not slow)"
"""Marks of the default suite and the sweeps."""
Rows = dict[tuple[int, str], dict]


def with_warm(folder: pathlib.Path, marks: str, work: Callable[[Warm], None]) -> None:
    """Import the package's copy and collect the tests, then call `work` with what runs them."""
    for name in ("mutated", "plain"):
        runs.copy_package(folder / name)
    package, log = folder / "mutated", folder / "mutated" / "log.tsv"
    os.environ |= runs.environment(package, runs.home_of(folder), log)
    sys.path.insert(0, str(package))
    sys.pycache_prefix = str(folder / "home" / "bytecode")
    os.chdir(runs.ROOT)
    without = [f"no:{name}" for name in ("cacheprovider", "xdist", "faulthandler")]
    plugins = [option for name in ("lab.mutation.plugin", *without) for option in ("-p", name)]
    options = ["-s", "-m", marks, f"--basetemp={folder / 'tmp'}"]
    pytest.main([*plugins, *options], [Warm(log, work)])


def run_mutants(
    folder: pathlib.Path, warm: Warm, only: slice, minutes: float, budget_s: float
) -> None:
    """Run the tests against the mutants that have no result yet, until the CPU minutes are over."""
    numbers = range(len(mutant_map.load_mutants(folder)))[only]

    def left() -> list[int]:
        found = {
            number: row for (number, suite), row in results(folder).items() if suite == "default"
        }
        done = {
            number
            for number, row in found.items()
            if row["verdict"] != "unresolved" or row["budget_s"] >= budget_s
        }
        return [n for n in numbers if n not in done and str(n) not in equivalent(folder)]

    withdraw(folder, warm)
    while (now := left()) and runs.children_cpu_s() < minutes * 60:
        for number in now[:BATCH]:
            _run_one(folder, warm, number, budget_s)
        withdraw(folder, warm)
    print(f"{runs.children_cpu_s():.0f} CPU s, {len(left())} left")


def _run_one(folder: pathlib.Path, warm: Warm, number: int, budget_s: float) -> None:
    mutant, known = mutant_map.load_mutants(folder)[number], mutant_map.load_map(folder)
    tests, whole = known.chosen(number, budget_s)
    if mutant is None or not tests:
        outcome = runs.Outcome("not covered" if mutant else "gone", "", 0, 0.0)
    else:
        early = number in known.early
        outcome = _run_changed(folder, warm, mutant, early, tests, 2 * budget_s, known.cost_s)
    if outcome.verdict == "survived" and not whole:
        outcome = runs.Outcome("unresolved", "", outcome.passed, outcome.cpu_s)
    note(folder, number, mutant, "default", outcome, len(known.fit(number)), budget_s)


def _run_changed(
    folder: pathlib.Path,
    warm: Warm,
    mutant: mutants.Mutant,
    early: bool,
    tests: Sequence[str],
    limit_s: float,
    usual_s: Mapping[str, float],
    marks: str = runs.DEFAULT,
) -> runs.Outcome:
    """Run tests against a mutant, in a fork unless its statement has run `early`, by an import."""
    package = folder / "mutated"
    file, outcome = runs.copied(package, mutant.path), None
    before = file.read_text()
    with runs.changed(package, mutant), runs.home_for(folder, mutant.path) as home:
        if not early and not mutant.at_import:
            change = file, before, mutant.applied(before)
            outcome = warm.run_tests(tests, limit_s, usual_s, change)
        return outcome or runs.run_tests(package, home, tests, limit_s, usual_s, marks)


def withdraw(folder: pathlib.Path, warm: Warm) -> None:
    """Withdraw the kills by tests that do not pass without a mutant either."""
    kills = [row for row in results(folder).values() if row["verdict"] == "killed"]
    done = folder / "confirmed.txt"
    before = set(done.read_text().splitlines()) if done.exists() else set()
    tests = {row["by"] for row in kills if "::" in row["by"]} - before
    record(folder, warm, sorted(tests), mutant_map.load_map(folder).cost_s)
    known = mutant_map.load_map(folder)
    wrong = {test for test in tests if known.outcome[test] != "passed"}
    done.write_text("\n".join(sorted(before | tests)))
    for row in kills:
        if row["by"] in wrong:
            print("withdrawn:", row["number"], row["by"])
            _append(folder / "results.jsonl", row | {"verdict": "withdrawn"})


def record(
    folder: pathlib.Path, warm: Warm, tests: Sequence[str], usual_s: Mapping[str, float]
) -> None:
    """Run tests without a mutant and add how they ended to the map.

    Where a run ends early, the test that it was at counts as skipped and the rest run again.
    """
    left, passed, cpu_s = list(tests), 0, 0.0
    while left:
        with runs.home_for(folder, ""):
            outcome = warm.run_tests(left, 3600.0, usual_s, stop=False)
        assert outcome is not None
        passed, cpu_s, text = passed + outcome.passed, cpu_s + outcome.cpu_s, warm.log.read_text()
        ended = {line.split("\t")[2] for line in text.splitlines() if "begun" not in line}
        left = [test for test in left if test not in ended]
        lost = "".join(f"skipped\t0\t{test}\n" for test in left[:1])
        _append_text(folder / "tests.tsv", text + lost)
        left = left[1:]
    if tests:
        print(f"without a mutant: {passed} of {len(tests)} passed, {cpu_s:.0f} CPU s", flush=True)


def run_sweeps(folder: pathlib.Path, warm: Warm) -> None:
    """Run the sweeps of the covering functions against what the default suite did not kill."""
    drawn, known = mutant_map.load_mutants(folder), mutant_map.load_map(folder)
    sweeps = collections.defaultdict(list)
    for test, item in warm.items.items():
        if item.get_closest_marker("sweep"):
            sweeps[test.split("[")[0]].append(test)
    for (number, suite), row in sorted(results(folder).items()):
        wanted = suite == "default" and row["verdict"] in ("survived", "unresolved")
        if not wanted or (number, "sweep") in results(folder) or str(number) in equivalent(folder):
            continue
        functions = sorted({test.split("[")[0] for test in known.fit(number)})
        tests = [
            test
            for turn in itertools.zip_longest(*(sweeps[name] for name in functions))
            for test in turn
            if test
        ]
        mutant, early = drawn[number], number in known.early
        assert mutant is not None
        if tests:
            outcome = _run_changed(folder, warm, mutant, early, tests, SWEEP_S, {}, runs.SWEEPS)
        else:
            outcome = runs.Outcome("survived", "", 0, 0.0)
        note(folder, number, mutant, "sweep", outcome, len(tests), SWEEP_S)
    withdraw(folder, warm)


def equivalent(folder: pathlib.Path) -> dict[str, str]:
    """Why no test can notice some mutants, by their numbers."""
    path = folder / "equivalent.json"
    return json.loads(path.read_text()) if path.exists() else {}


def report(folder: pathlib.Path) -> None:
    """Print the counts of each kind, and what was not killed."""
    found, why = results(folder), equivalent(folder)
    rows = [row for (_, suite), row in sorted(found.items()) if suite == "default"]
    swept = {n: row["verdict"] for (n, suite), row in found.items() if suite == "sweep"}

    def verdict(row: dict) -> str:
        return "equivalent" if str(row["number"]) in why else row["verdict"]

    for kind in [*sorted({row["kind"] for row in rows}), ""]:
        mine = [row for row in rows if not kind or row["kind"] == kind]
        counts = collections.Counter(map(verdict, mine))
        more = sum(swept.get(row["number"]) == "killed" for row in mine)
        print(
            f"{kind or 'all':18} {len(mine)} run:",
            ", ".join(f"{count} {name}" for name, count in counts.most_common()),
            f"({more} more killed by sweeps)",
        )
    for row in rows:
        if row["verdict"] != "killed":
            more = [why.get(str(row["number"]), ""), swept.get(row["number"], "")]
            print(row["number"], verdict(row), row["mutant"], *filter(None, more))


def note(
    folder: pathlib.Path,
    number: int,
    mutant: mutants.Mutant | None,
    suite: str,
    outcome: runs.Outcome,
    covering: int,
    budget_s: float,
) -> None:
    """Append a row and print it."""
    row = {
        "number": number,
        "suite": suite,
        "verdict": outcome.verdict,
        "by": outcome.by,
        "kind": mutant.kind if mutant else "",
        "mutant": str(mutant or ""),
        "passed": outcome.passed,
        "covering": covering,
        "cpu_s": outcome.cpu_s,
        "budget_s": budget_s,
    }
    _append(folder / "results.jsonl", row)
    print(*(row[key] for key in ("number", "verdict", "mutant", "by", "cpu_s")), flush=True)


def results(folder: pathlib.Path) -> Rows:
    """The last row of each mutant and suite, those left out that were withdrawn."""
    path = folder / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    last = {(row["number"], row["suite"]): row for row in rows}
    return {key: row for key, row in last.items() if row["verdict"] != "withdrawn"}


def _append(path: pathlib.Path, row: dict) -> None:
    _append_text(path, json.dumps(row) + "\n")


def _append_text(path: pathlib.Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}", description=__doc__.splitlines()[0]
    )
    parser.add_argument("command", choices=["map", "reuse", "run", "sweep", "report"])
    parser.add_argument("folders", type=pathlib.Path, nargs="+")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2, help="xdist's workers of the map")
    parser.add_argument("--only", default=":", help="mutants FROM:TO")
    parser.add_argument("--minutes", type=float, default=1e9, help="CPU minutes for the mutants")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="CPU seconds of a mutant")
    args = parser.parse_args()
    *older, folder = (path.resolve() for path in args.folders)
    low, _, high = args.only.partition(":")
    if args.command == "map":
        mutant_map.make_map(folder, args.count, args.seed, args.jobs)
    elif args.command == "reuse":
        mutant_map.reuse(*older, folder)
    elif args.command == "run":
        only = slice(int(low or 0), int(high) if high else None)
        limits = args.minutes, args.budget
        with_warm(folder, runs.DEFAULT, lambda warm: run_mutants(folder, warm, only, *limits))
    elif args.command == "sweep":
        with_warm(folder, ALL, lambda warm: run_sweeps(folder, warm))
    else:
        report(folder)


if __name__ == "__main__":
    sys.exit(main())
