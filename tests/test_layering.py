"""Imports point one way: tools -> converters, devices -> engine; inside engine, down the story."""

import ast
import pathlib
import subprocess
import sys

import pytest
from sweep import sweep

ROOT = pathlib.Path(__file__).parent.parent
MAY_IMPORT = {
    "engine": {"schema"},
    "schema": set(),
    "devices": {"engine", "schema"},
    "converters": {"engine"},
    "tools": {"engine", "devices", "converters"},
}
ENGINE_ORDER = [
    "errors", "arguments", "limits", "closing", "locks", "forks", "dtypes", "mapped", "user_files",
    "disk_cache", "graph", "dtype_rules", "op",
    "effects", "check", "interpret", "builder", "rewrite", "quantize", "ops", "passes", "optimise",
    "model_file", "bind_shapes", "notes", "convert", "model_cache", "kernel_table",
    "calibrating.remedy",
    "calibrating.handover", "calibrating.quality", "device", "opening", "calibrating.calibration",
    "cost", "calibrating.reference", "calibrating.fit", "memory", "naming", "placement",
    "placing.problem", "placing.stages", "placing.budget", "placing.makespan", "placing.prices",
    "placing.bounds",
    "placing.cuts", "placing.contract", "placing.objective", "placing.idle", "placing.polish",
    "placing.anneal", "placing.starts", "placing.factors", "placing.messages", "placing.search",
    "placing.proof", "placing.prove_stages", "placing.prove_paths",
    "placing.prove", "placing.prove_tasks", "placing.prove_makespan", "place",
    "placing.singles", "placing.doubt", "placing.deciding",
    "parallel.rules", "parallel.batch", "parallel.split",
    "parallel.spec", "parallel.evaluate", "parallel.hopes", "parallel.choose", "placing.proven",
    "placing.reprice",
    "explain", "placing.shatter", "lockfile", "subgraphs", "plan_memory", "plan", "plan_check",
    "virtual",
    "compile", "running.copies", "running.failures", "running.dispatch", "running.flights",
    "running.execute", "running.repeats",
    "running.runs", "running.interactive", "drift", "profile", "running.trace",
    "calibrating.net_builder", "calibrating.nets",
    "running.feeds", "running.ports", "running.lane", "parallel.flow", "parallel.pipeline",
    "parallel.dealing", "measure", "prepare", "session", "calibrating.visits",
    "calibrating.deciding", "calibrating.pace", "calibrating.turns", "calibrating.calibrate",
    "parallel.replicas", "parallel.measure", "running.per_node", "eager", "replay",
]  # fmt: skip
MODULES = [
    path
    for top in MAY_IMPORT
    for path in sorted((ROOT / top).rglob("*.py"))
    if "generated" not in path.parts and "__pycache__" not in path.parts
]


def module_name(path: pathlib.Path) -> str:
    top, *rest = path.relative_to(ROOT).with_suffix("").parts
    parts = ["trireme", *([] if top == "engine" else [top]), *rest]
    return ".".join(part for part in parts if part != "__init__")


def imported(path: pathlib.Path) -> set[str]:
    """Every dotted name imported anywhere in the file, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: use absolute imports"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "trireme"}


def split(name: str) -> tuple[str, list[str]]:
    """The top folder of a dotted name, and the rest of it."""
    parts = name.split(".")[1:]
    if parts and parts[0] in MAY_IMPORT and parts[0] != "engine":
        return parts[0], parts[1:]
    return "engine", parts


def step(parts: list[str]) -> int | None:
    """The place in the story of an engine module, or of the package that it is in."""
    for name in (".".join(parts[:2]), parts[0]):
        if name in ENGINE_ORDER:
            return ENGINE_ORDER.index(name)
    return None


def wrong_imports(path):
    """Yield a sentence for each import of a file that does not point down."""
    top, mine = split(module_name(path))
    for name in imported(path):
        other, theirs = split(name)
        if other != top and other not in MAY_IMPORT[top]:
            yield f"{top}/ may not import {name}"
        if top == other == "devices" and mine and theirs and theirs[0] != mine[0]:
            yield f"devices/{mine[0]} may not import {name}"
        if top == other == "engine" and mine and theirs and step(theirs) is not None:
            here = step(mine)
            if here is None:
                yield f"{'.'.join(mine)} has no place in ENGINE_ORDER"
            elif step(theirs) > here:
                yield f"engine/{'/'.join(mine)} may not import {name}: it comes later in the story"


def test_imports_point_down():
    wrong = [sentence for path in MODULES for sentence in wrong_imports(path)]
    assert not wrong, "\n".join(wrong)


ALONE = """
import importlib, os, sys, traceback
import trireme  # which importing any module of it does first, in a process of its own too
failed = []
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
sys.exit(f"cannot be imported alone: {failed}" if failed else 0)
"""


@pytest.mark.parametrize("step", sweep([9, 1], always=[9]))
def test_every_module_imports_alone(step):
    """Each in a process of its own, so that none leans on what others imported; a tenth of
    a second each, so always each package and a ninth of the modules.
    """
    packages = {module_name(path) for path in MODULES if path.name == "__init__.py"}
    names = sorted(packages | set(sorted({module_name(path) for path in MODULES})[::step]))
    run = subprocess.run([sys.executable, "-c", ALONE, *names], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
