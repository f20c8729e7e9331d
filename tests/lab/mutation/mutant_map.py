"""Which tests come by each mutant, and what they cost: found once, for all mutants together.

`make_map` runs the default suite on a copy of the package in which every statement to be changed
tells which test it is in. `chosen` picks the tests to run against a mutant. `reuse` carries the map
of an older tree over to this one.
"""

import ast
import collections
import dataclasses
import json
import pathlib
import subprocess
from collections.abc import Mapping, Sequence

from lab.mutation import limits as runs
from lab.mutation import mutants

MUTATED = ("engine", "devices")
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


def sources(package: pathlib.Path | None = None) -> dict[str, str]:
    """The text of every file that may be changed, by its path; those of a copy if one is given."""
    paths = [path for top in MUTATED for path in sorted((runs.ROOT / top).rglob("*.py"))]
    names = [str(path.relative_to(runs.ROOT)) for path in paths]
    if package is None:
        return {name: (runs.ROOT / name).read_text() for name in names}
    at = {name: runs.copied(package, name) for name in names}
    return {name: path.read_text() for name, path in at.items() if path.exists()}


def make_map(folder: pathlib.Path, count: int, seed: int, jobs: int) -> None:
    """Draw mutants, run the default suite on instrumented code, write who came by where."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = sources()
    drawn = mutants.drawn(texts, count, seed)
    write_mutants(folder, drawn)
    runs.copy_package(folder / "plain")
    package = runs.copy_package(folder / "probed")
    by_path = collections.defaultdict(list)
    for number, mutant in enumerate(drawn):
        by_path[mutant.path].append((number, mutant))
    for path, numbered in by_path.items():
        at = {m.statement: number for number, m in numbered if not m.at_import}
        tree = _Probes(at, [n for n, m in numbered if m.at_import]).visit(ast.parse(texts[path]))
        runs.copied(package, path).write_text(ast.unparse(ast.fix_missing_locations(tree)))
    hits, log = folder / "hits.tsv", folder / "tests.tsv"
    (package / "sitecustomize.py").write_text(PROBE.format(path=str(hits)))
    for path in (hits, log):
        path.write_text("")
    command = ["pytest", "-p", "lab.mutation.plugin", "-p", "no:cacheprovider", "-n", str(jobs)]
    env = runs.environment(package, folder / "home", log)
    subprocess.run(command, cwd=runs.ROOT, env=env)


def reuse(older: pathlib.Path, folder: pathlib.Path) -> None:
    """Write the map of an older tree as this tree's: mutants where their statements are now.

    A mutant whose statement is gone becomes null. What the tests cost is kept; whether they pass
    without a mutant has to be seen anew.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before, after = sources(older / "plain"), sources()
    drawn = []
    for mutant in load_mutants(older):
        known = mutant and mutant.path in before and mutant.path in after
        now = mutants.moved(mutant, before[mutant.path], after[mutant.path]) if known else None
        drawn.append(now)
        if now is None:
            print("gone:", len(drawn) - 1, mutant)
    write_mutants(folder, drawn)
    (folder / "hits.tsv").write_text((older / "hits.tsv").read_text())
    log = [line.split("\t") for line in (older / "tests.tsv").read_text().splitlines()]
    ended = [f"unknown\t{cost}\t{test}\n" for event, cost, test in log if event != "begun"]
    (folder / "tests.tsv").write_text("".join(ended))
    runs.copy_package(folder / "plain")


@dataclasses.dataclass(frozen=True)
class Map:
    """The tests that come by each mutant; what each costs in CPU seconds, and how it ended.

    early: mutants that something other than a test comes by, as an import does
    """

    tests: Mapping[int, Sequence[str]]
    cost_s: Mapping[str, float]
    outcome: Mapping[str, str]
    early: frozenset[int] = frozenset()

    def fit(self, number: int) -> list[str]:
        """The tests that come by a mutant and pass without one, or may."""
        found = self.tests.get(number, ())
        return [test for test in found if self.outcome[test] in ("passed", "unknown")]

    def chosen(self, number: int, budget_s: float) -> tuple[list[str], bool]:
        """Return tests of a mutant that take `budget_s` in all, and whether they are all of them.

        The cheapest of each function come first, then the next of each, and so on: tests of one
        function mostly see the same. What a 64th of the budget pays for runs before the rest, then
        what four times as much pays for, and so on: tests of a file run together within a part.
        """
        by_function = collections.defaultdict(list)
        for test in sorted(self.fit(number), key=self.cost_s.__getitem__):
            by_function[test.split("[")[0]].append(test)
        ranked = [(i, t) for tests in by_function.values() for i, t in enumerate(tests)]
        ranked.sort(key=lambda one: (one[0], self.cost_s[one[1]]))
        left, taken = budget_s, []
        for _, test in ranked:
            if self.cost_s[test] <= left or not taken:
                left -= self.cost_s[test]
                taken.append(test)
        parts, so_far = collections.defaultdict(list), 0.0
        for test in taken:
            so_far += self.cost_s[test]
            parts[sum(so_far > budget_s / 4**i for i in (3, 2, 1))].append(test)
        ordered = [test for part in sorted(parts) for test in _by_file(parts[part])]
        return ordered, len(taken) == len(ranked)


def _by_file(tests: Sequence[str]) -> list[str]:
    """Tests of a file together, as they share fixtures; files in the order of their first."""
    files = collections.defaultdict(list)
    for test in tests:
        files[test.split("::")[0]].append(test)
    return [test for found in files.values() for test in found]


def load_map(folder: pathlib.Path) -> Map:
    """Read what `make_map` or `reuse` wrote, and what was run without a mutant since."""
    cost_s, outcome = {}, {}
    for line in (folder / "tests.tsv").read_text().splitlines():
        event, seconds, test = line.split("\t")
        if event != "begun":
            failed = outcome.get(test) in ("failed", "skipped")
            outcome[test], cost_s[test] = outcome[test] if failed else event, float(seconds)
    tests: dict[int, set[str]] = collections.defaultdict(set)
    early = set()
    for line in (folder / "hits.tsv").read_text().splitlines():
        number, where = line.split("\t")
        test = where.rpartition(" (")[0]
        if test in outcome:
            tests[int(number)].add(test)
        elif not test:
            early.add(int(number))
    by_number = {number: sorted(found) for number, found in tests.items()}
    return Map(by_number, cost_s, outcome, frozenset(early))


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


def write_mutants(folder: pathlib.Path, drawn: Sequence[mutants.Mutant | None]) -> None:
    rows = [mutant and dataclasses.asdict(mutant) for mutant in drawn]
    (folder / "mutants.json").write_text(json.dumps(rows, indent=1))


def load_mutants(folder: pathlib.Path) -> list[mutants.Mutant | None]:
    """The mutants by number; None for one whose statement is gone."""
    rows = json.loads((folder / "mutants.json").read_text())
    return [row and mutants.Mutant(**row | {"statement": tuple(row["statement"])}) for row in rows]
