"""Imports point one way: tools -> converters, devices -> engine; inside engine, room by room."""

import ast
import graphlib
import importlib.util
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
from sweep import sweep
from zoo import CHECKOUT

ROOT = CHECKOUT
MAY_IMPORT = {
    "engine": {"schema"},
    "schema": set(),
    "devices": {"engine", "schema"},
    "converters": {"engine"},
    "tools": {"engine", "schema", "devices", "converters"},
}
ROOMS = {
    "trireme": [
        "version", "support", "ir", "ops", "passes", "model_file", "backend", "cost", "placement",
        "plan", "profiling", "runtime", "quantiser", "calibration", "compat", "serving",
    ],
    "trireme.runtime": [
        "program", "loop", "shapes", "states", "control", "calls", "models", "dataflow", "streams",
        "session", "eager",
    ],
    "trireme.devices.cpu": ["codegen", "runtime", "kernels", "patterns", "compile"],
    "trireme.devices.cpu.kernels": [
        "lowering", "opaque", "sample", "spans", "expressions", "copies", "lines", "phases",
        "f32", "int8", "dynamic_range", "movement",
    ],
    "trireme.devices.npu": ["spec", "stream", "simulator", "compiler"],
}  # fmt: skip
"""The rooms of some packages: each may use those before it. Modules that are not listed come last:
they are the package's front, as device.py is of a device.
"""
FRONT = {"", "__main__"}
"""Modules of engine/ that are in no room: the package itself, and its command."""
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


def step(package: str, name: str) -> int:
    """The place of a module's room in a package."""
    rooms = ROOMS[package]
    room = name.removeprefix(package + ".").split(".")[0]
    return rooms.index(room) if name != package and room in rooms else len(rooms)


def wrong_imports(path: pathlib.Path) -> Iterator[str]:
    """Yield a sentence for each import of a file that does not point down."""
    own = module_name(path)
    top, mine = split(own)
    for name in imported(path):
        other, theirs = split(name)
        if other != top and other not in MAY_IMPORT[top]:
            yield f"{top}/ may not import {name}"
        if top == other == "devices" and mine and theirs and theirs[0] != mine[0]:
            yield f"devices/{mine[0]} may not import {name}"
        for package in ROOMS:
            both = all(f"{one}.".startswith(f"{package}.") for one in (own, name))
            if top == other and both and step(package, name) > step(package, own):
                yield f"{own} may not import {name}: its room comes later"


def test_imports_point_down():
    wrong = [sentence for path in MODULES for sentence in wrong_imports(path)]
    assert not wrong, "\n".join(wrong)


def test_every_module_of_the_engine_is_in_a_room():
    inside = [module_name(path).split(".")[1:] for path in MODULES]
    homeless = [
        ".".join(parts)
        for parts in inside
        if split(".".join(["trireme", *parts]))[0] == "engine"
        and (parts or [""])[0] not in {*ROOMS["trireme"], *FRONT}
    ]
    assert not homeless


def test_no_modules_import_each_other():
    """Neither two nor more in a circle, imports inside functions included."""
    known = {module_name(path): path for path in MODULES}
    needs = {
        name: {other for one in imported(path) if (other := whose(one, known)) not in ("", name)}
        for name, path in known.items()
    }
    needs.pop("trireme")
    list(graphlib.TopologicalSorter(needs).static_order())  # CycleError names them


def whose(name: str, known: Mapping[str, pathlib.Path]) -> str:
    """The module that an imported name is of, or is; nothing if it is not known."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


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


@pytest.mark.parametrize("step", sweep([40, 1], always=[40]))
def test_every_module_imports_alone(step):
    """Each in a process of its own, so that none leans on what others imported; a tenth of
    a second each, so always each package and a fortieth of the modules.
    """
    packages = {module_name(path) for path in MODULES if path.name == "__init__.py"}
    names = sorted(packages | set(sorted({module_name(path) for path in MODULES})[::step]))
    if importlib.util.find_spec("torch") is None:  # only its converter may need it
        names = [name for name in names if not name.startswith("trireme.converters.torch.")]
    if importlib.util.find_spec("starlette") is None:  # what the extra serve brings
        names = [name for name in names if not name.startswith("trireme.serving.")]
    if importlib.util.find_spec("ray") is None:
        names = [name for name in names if name != "trireme.serving.on_ray"]
    run = subprocess.run([sys.executable, "-c", ALONE, *names], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
