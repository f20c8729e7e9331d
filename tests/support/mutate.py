"""How many small bugs the tests notice: run them against seeded mutants of engine/ and devices/.

    python tests/support/mutate.py map FOLDER [--count 200] [--seed 12]   which test runs which line
    python tests/support/mutate.py run FOLDER [--only 0:20]               tests against each mutant
    python tests/support/mutate.py sweep FOLDER                           survivors against sweeps
    python tests/support/mutate.py report FOLDER

`map` runs the default suite once on a copy of the package in which every statement to be changed
tells which test it is in. `run` makes one mutant after another in another copy and runs the tests
that came by, the cheapest first, then the whole files that they are in; it stops at the first
failure. A run that takes too much time or memory counts as noticed. `sweep` gives what survived the
sweeps of those files too: together they are what the default suite was before it had sweeps.
Results are appended to FOLDER/results.jsonl, so a run can be stopped and taken up again; runs of
different mutants may go on at once.
"""

import argparse
import ast
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

import mutants
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MUTATED = ("engine", "devices")
COPIED = ("schema", "converters", "devices", "tools")
MOST_TESTS, MOST_FILES = 40, 6
CPU_S, WALL_S, MEMORY_BYTES = 60.0, 420.0, 8 << 30
"""Limits of a run of tests beside ten times what they take without a mutant."""

PROBE = """
import builtins, os
seen = set()
def probe(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in seen:
        seen.add((number, test))
        with open({path!r}, "a") as file:
            file.write(f"{{number}}\\t{{test}}\\n")
builtins.__probe__ = probe
"""
_costs = os.environ.get("TRIREME_MUTATE_COSTS")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Note what a test costs (this file is a plugin of the map's run)."""
    before = os.times()
    result = yield
    if _costs:
        cost = sum(b - a for a, b in zip(before[:4], os.times()[:4], strict=True))
        with open(_costs, "a") as file:
            file.write(f"{cost:.3f}\t{item.nodeid}\n")
    return result


def copy_package(folder: pathlib.Path) -> pathlib.Path:
    """Copy the package as it is imported; return the folder that holds it."""
    shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "engine", folder / "trireme", ignore=ignore)
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / "trireme" / name, ignore=ignore)
    return folder


def copied(folder: pathlib.Path, path: str) -> pathlib.Path:
    """Where a file of the repository is in a copy of the package."""
    return folder / "trireme" / path.removeprefix("engine/")


def sources() -> dict[str, str]:
    """The text of every file that may be changed, by its path."""
    paths = [path for top in MUTATED for path in sorted((ROOT / top).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


class _Probes(ast.NodeTransformer):
    """Puts a call of the probe before statements; before all functions' first at `everywhere`."""

    def __init__(self, at: dict[tuple[int, int], int], everywhere: list[int]) -> None:
        self.at, self.everywhere = at, everywhere

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                body[:] = [made for one in body for made in (*self._before(one), one)]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body[:0] = [_call(number) for number in self.everywhere]
        return node

    def _before(self, statement: ast.AST) -> list[ast.stmt]:
        place = (getattr(statement, "lineno", 0), getattr(statement, "col_offset", 0))
        return [_call(self.at[place])] if place in self.at else []


def _call(number: int) -> ast.stmt:
    return ast.parse(f"__probe__({number})").body[0]


def make_map(folder: pathlib.Path, count: int, seed: int, jobs: int) -> None:
    """Draw mutants, run the default suite on instrumented code, write who came by where."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = sources()
    chosen = mutants.drawn(texts, count, seed)
    write(folder / "mutants.json", [dataclasses.asdict(mutant) for mutant in chosen])
    package = copy_package(folder / "probed")
    by_path = collections.defaultdict(list)
    for number, mutant in enumerate(chosen):
        by_path[mutant.path].append((number, mutant))
    for path, numbered in by_path.items():
        at = {m.statement: number for number, m in numbered if not m.at_import}
        tree = _Probes(at, [n for n, m in numbered if m.at_import]).visit(ast.parse(texts[path]))
        copied(package, path).write_text(ast.unparse(ast.fix_missing_locations(tree)))
    hits, costs = folder / "hits.tsv", folder / "costs.tsv"
    (package / "sitecustomize.py").write_text(PROBE.format(path=str(hits)))
    for path in (hits, costs):
        path.write_text("")
    env = environment(folder, package) | {"TRIREME_MUTATE_COSTS": str(costs)}
    command = ["pytest", "-p", "mutate", "-p", "no:cacheprovider", "-n", str(jobs)]
    subprocess.run(command, cwd=ROOT, env=env)
    write(folder / "map.json", mapped(hits.read_text(), costs.read_text()))


def mapped(hits: str, costs: str) -> dict[str, list[tuple[float, str]]]:
    """Return (CPU seconds, test), the cheapest first, for each mutant that a test came by."""
    cost = {}
    for line in costs.splitlines():
        seconds, test = line.split("\t")
        cost[test] = float(seconds)
    found = collections.defaultdict(set)
    for line in hits.splitlines():
        number, test = line.split("\t")
        test = test.rpartition(" (")[0]
        if test in cost:
            found[number].add(test)
    return {number: sorted((cost[t], t) for t in tests) for number, tests in found.items()}


def environment(folder: pathlib.Path, package: pathlib.Path) -> dict[str, str]:
    """The environment in which tests import a copy of the package; caches last."""
    path = f"{package}{os.pathsep}{pathlib.Path(__file__).parent}"
    return os.environ | {
        "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1",
        "TRIREME_TEST_HOME": str(folder / "home"),
    }  # fmt: skip


def run_tests(
    folder: pathlib.Path, package: pathlib.Path, tests: list[str], usual_s: float, marks: str
) -> tuple[str, str]:
    """Run tests within limits: ("killed", by what) or ("survived", "")."""
    cpu_s = int(CPU_S + 10 * usual_s)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))

    command = ["pytest", "-x", "-p", "no:cacheprovider", "-m", marks, *tests]
    child = subprocess.Popen(
        command, cwd=ROOT, env=environment(folder, package), text=True, preexec_fn=limit,
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = child.communicate(timeout=WALL_S + 10 * usual_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        child.communicate()
        return "killed", "time"
    if child.returncode in (0, 5):
        return "survived", ""
    for line in reversed(output.splitlines()):
        if line.startswith(("FAILED ", "ERROR ")):
            return "killed", line.split(" ", 1)[1].split(" - ")[0]
    return "killed", f"exit status {child.returncode}"


def run_mutants(folder: pathlib.Path, only: slice) -> None:
    """Run the tests against the mutants that have no result yet."""
    chosen, found = load_mutants(folder), read(folder / "map.json")
    package = copy_package(folder / f"mutated-{only.start}")
    done = results(folder)
    for number, mutant in list(enumerate(chosen))[only]:
        if (number, "default") in done:
            continue
        start, tests = time.monotonic(), found.get(str(number), [])
        verdict, by = "not covered", ""
        if tests:
            with changed(package, mutant):
                first = tests[:MOST_TESTS]
                names, usual_s = [test for _, test in first], sum(cost for cost, _ in first)
                verdict, by = run_tests(folder, package, names, usual_s, DEFAULT)
                if verdict == "survived":
                    verdict, by = run_tests(folder, package, files_of(tests), 30.0, DEFAULT)
        note(folder, number, mutant, "default", verdict, by, time.monotonic() - start)


DEFAULT, SWEEPS = "not slow and not timed", "sweep"


def run_sweeps(folder: pathlib.Path) -> None:
    """Run the sweeps of the covering files against what survived the default suite."""
    chosen, found, done = load_mutants(folder), read(folder / "map.json"), results(folder)
    package = copy_package(folder / "mutated")
    for (number, suite), row in sorted(done.items()):
        if suite == "default" and row["verdict"] == "survived" and (number, "sweep") not in done:
            start = time.monotonic()
            with changed(package, chosen[number]):
                files = files_of(found[str(number)])
                verdict, by = run_tests(folder, package, files, 60.0, SWEEPS)
            note(folder, number, chosen[number], "sweep", verdict, by, time.monotonic() - start)


def files_of(tests: list[tuple[float, str]]) -> list[str]:
    """The files of most tests."""
    counts = collections.Counter(test.split("::")[0] for _, test in tests)
    return [file for file, _ in counts.most_common(MOST_FILES)]


@contextlib.contextmanager
def changed(package: pathlib.Path, mutant: mutants.Mutant):
    """A mutant in a copy of the package, for the time of a `with`."""
    file = copied(package, mutant.path)
    source = file.read_text()
    file.write_text(mutant.applied(source))
    try:
        yield
    finally:
        file.write_text(source)


def report(folder: pathlib.Path) -> None:
    """Print the counts of each kind and what survived."""
    rows = [row for (_, suite), row in sorted(results(folder).items()) if suite == "default"]
    swept = {n: row for (n, suite), row in results(folder).items() if suite == "sweep"}
    for kind in [*sorted({row["kind"] for row in rows}), ""]:
        mine = [row for row in rows if not kind or row["kind"] == kind]
        count = collections.Counter(row["verdict"] for row in mine)
        more = sum(swept[r["number"]]["verdict"] == "killed" for r in mine if r["number"] in swept)
        print(f"{kind or 'all':20} {len(mine):4} run {count['killed']:4} killed "
              f"{count['survived']:4} survived ({more} of them killed by sweeps) "
              f"{count['not covered']:4} not covered")  # fmt: skip
    for row in rows:
        if row["verdict"] != "killed":
            after = swept.get(row["number"], {}).get("verdict", "")
            print(row["verdict"], after and f"(sweep: {after})", row["mutant"])


def note(folder, number, mutant, suite, verdict, by, seconds) -> None:
    row = {
        "number": number, "suite": suite, "verdict": verdict, "by": by, "kind": mutant.kind,
        "mutant": str(mutant), "wall_s": round(seconds, 1),
    }  # fmt: skip
    with open(folder / "results.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    print(number, verdict, mutant, by, f"{seconds:.0f} s", flush=True)


def results(folder: pathlib.Path) -> dict[tuple[int, str], dict]:
    """The rows written so far, by mutant and suite."""
    path = folder / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row["number"], row["suite"]): row for row in rows}


def load_mutants(folder: pathlib.Path) -> list[mutants.Mutant]:
    rows = read(folder / "mutants.json")
    return [mutants.Mutant(**row | {"statement": tuple(row["statement"])}) for row in rows]


def read(path: pathlib.Path):
    return json.loads(path.read_text())


def write(path: pathlib.Path, value) -> None:
    path.write_text(json.dumps(value, indent=1))


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["map", "run", "sweep", "report"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2, help="xdist's workers of the map")
    parser.add_argument("--only", default=":", help="mutants FROM:TO")
    args = parser.parse_args()
    folder = args.folder.resolve()
    if args.command == "map":
        make_map(folder, args.count, args.seed, args.jobs)
    elif args.command == "run":
        low, _, high = args.only.partition(":")
        run_mutants(folder, slice(int(low or 0), int(high) if high else None))
    elif args.command == "sweep":
        run_sweeps(folder)
    else:
        report(folder)


if __name__ == "__main__":
    sys.exit(main())
