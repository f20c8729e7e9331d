"""Figures of the source tree: `python tests/support/house_figures.py`.

Lines and modules of each room, the longest functions, public names without a docstring, lines that
keep the formatter off, ops that are named in more than one place outside the tables of converters
and kernels, lists of op names, and long sentences of the docs.
"""

import ast
import collections
import pathlib
import re
from collections.abc import Iterator

from op_lists import NOT_OPS, RULES, outside_tables
from zoo import CHECKOUT

from trireme.ir.op import all_ops

TOPS = ("engine", "devices", "converters", "tools")
LONGEST = 5
MOST_WORDS = 25
SKIP = "# fmt: " + "skip"


def files(*tops: str) -> Iterator[pathlib.Path]:
    for top in tops:
        for path in sorted((CHECKOUT / top).rglob("*.py")):
            if "generated" not in path.parts:
                yield path


def lines_of(path: pathlib.Path) -> int:
    return len(path.read_text().splitlines())


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def is_overload(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


def undocumented(tree: ast.Module) -> list[str]:
    """Public functions and classes at the top of a module that have no docstring.

    The signatures of an overload need none: the function below them has it.
    """
    kinds = (ast.FunctionDef, ast.ClassDef)
    tops = [n for n in tree.body if isinstance(n, kinds) and not is_overload(n)]
    return [n.name for n in tops if not n.name.startswith("_") and not ast.get_docstring(n)]


def rooms() -> dict[str, tuple[int, int]]:
    """Modules and lines of each room of the engine."""
    found: dict[str, tuple[int, int]] = {}
    for path in files("engine"):
        parts = path.relative_to(CHECKOUT / "engine").parts
        name = parts[0] if len(parts) > 1 else "front"
        count, lines = found.get(name, (0, 0))
        found[name] = count + 1, lines + lines_of(path)
    return found


def ops_named() -> dict[str, list[str]]:
    """Engine modules outside ops/ that name an op as a string, by op."""
    names = {op.name for op in all_ops()}
    found = collections.defaultdict(list)
    for path in files("engine"):
        where = str(path.relative_to(CHECKOUT))
        if not where.startswith("engine/ops/"):
            for name in sorted(names & set(re.findall(r'"([a-z0-9_]+)"', path.read_text()))):
                found[name].append(where)
    return found


def sentences(page: str) -> list[str]:
    """The sentences of a page: blocks, tables and headings left out."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.S | re.M)
    prose = re.sub(r"^ *(#|\|).*$", "", prose, flags=re.M)
    prose = re.sub(r"\n *([*-]|\d+\.) ", "\n\n", re.sub(r"\]\([^)]*\)|`[^`]*`", "x", prose))
    paragraphs = [" ".join(part.split()) for part in prose.split("\n\n")]
    return [one for part in paragraphs for one in re.split(r"(?<=[.:;]) (?=[A-Zx[*])", part) if one]


def main() -> None:
    print("room            modules   lines")
    for name, (count, lines) in rooms().items():
        print(f"  {name:<14}{count:>7}{lines:>8}")
    print(f"  {'engine':<14}{'':>7}{sum(map(lines_of, files('engine'))):>8}")
    for top in TOPS[1:]:
        print(f"  {top:<14}{'':>7}{sum(map(lines_of, files(top))):>8}")
    long, bare = [], 0
    for path in files(*TOPS):
        tree = ast.parse(path.read_text())
        where = path.relative_to(CHECKOUT)
        long += [((f.end_lineno or 0) - f.lineno + 1, f"{where}:{f.name}") for f in functions(tree)]
        bare += len(undocumented(tree))
    print("longest functions:")
    for size, name in sorted(long, reverse=True)[:LONGEST]:
        print(f"  {size:>4} {name}")
    kept = [path for path in files(*TOPS, "tests") if SKIP in path.read_text()]
    skips = sum(path.read_text().count(SKIP) for path in kept)
    print(f"public functions and classes without a docstring: {bare}")
    print(f"fmt: skip: {skips} in {len(kept)} files")
    named = ops_named()
    most = sorted(named.items(), key=lambda one: -len(one[1]))[:LONGEST]
    print(f"ops named in engine/ outside ops/: {len(named)}")
    print("  " + ", ".join(f"{name} in {len(where)} modules" for name, where in most))
    lists = [one for one in outside_tables(CHECKOUT) if (one.path, one.names) not in NOT_OPS]
    facts = [one for one in lists if (one.path, one.names) not in RULES]
    pages = [path for path in (CHECKOUT / "docs").rglob("*.md") if path.name != "api.md"]
    found = [one for page in pages for one in sentences(page.read_text())]
    long_ones = sum(len(one.split()) > MOST_WORDS for one in found)
    print(f"docs: {len(pages)} pages, {len(found)} sentences, {long_ones} over {MOST_WORDS} words")
    print(f"lists of op names outside ops/ and tables: {len(lists)}, {len(facts)} of them no rule")


if __name__ == "__main__":
    main()
