"""The wheel holds every module and data file of the tree and nothing else; the sdist builds one."""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from zoo import CHECKOUT

ROOT = CHECKOUT
FOLDERS = {
    "engine": "trireme",
    "schema": "trireme/schema",
    "converters": "trireme/converters",
    "devices": "trireme/devices",
    "tools": "trireme/tools",
}
NOT_SHIPPED = {"__pycache__"}


def shipped(root: pathlib.Path) -> set[str]:
    """The names that the files under the packages' folders have in a wheel."""
    return {
        f"{package}/{path.relative_to(root / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for path in (root / folder).rglob("*")
        if path.is_file() and not NOT_SHIPPED & set(path.parts)
    }


def build(source: pathlib.Path, target: pathlib.Path, kind: str) -> pathlib.Path:
    """Build a wheel or an sdist without the network and return its path."""
    code = f"import setuptools.build_meta as b; print(b.build_{kind}({str(target)!r}))"
    target.mkdir(exist_ok=True)
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return target / run.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> pathlib.Path:
    """A copy of what a checkout has, so that builds leave nothing in the tree."""
    copy = tmp_path_factory.mktemp("tree") / "trireme"
    copy.mkdir()
    for name in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(copy, tmp_path_factory) -> pathlib.Path:
    return build(copy, tmp_path_factory.mktemp("wheel"), "wheel")


def names_in(wheel: pathlib.Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_is_the_tree(copy, wheel):
    expected, found = shipped(copy), names_in(wheel)
    assert found - expected == set(), "in the wheel only"
    assert expected - found == set(), "not in the wheel"
    assert {"trireme/py.typed", "trireme/schema/trireme.fbs"} <= found


def test_the_metadata_names_the_command_and_the_license(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = next(name for name in archive.namelist() if name.endswith("METADATA")).rsplit("/")[0]
        metadata = archive.read(f"{info}/METADATA").decode()
        points = archive.read(f"{info}/entry_points.txt").decode()
        licenses = [name for name in archive.namelist() if "licenses/LICENSE" in name]
    assert "License-Expression: Apache-2.0" in metadata and licenses
    assert "Requires-Python: >=3.11" in metadata
    assert "trireme = trireme.tools.cli:main" in points


def test_the_sdist_builds_the_same_wheel(copy, wheel, tmp_path):
    sdist = build(copy, tmp_path / "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.glob("trireme_engine-*")
    again = build(tree, tmp_path / "again", "wheel")
    assert names_in(again) == names_in(wheel)


def test_the_wheel_works_where_the_tree_is_not(wheel, tmp_path):
    """Installed alone, with the data files found and no other top-level package left behind."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    tops = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"trireme"}
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.meta_path = [\n"
        "    f for f in sys.meta_path if 'editable' not in getattr(f, '__module__', '')\n"
        "    and 'editable' not in repr(f)]\n"
        "import trireme, trireme.model_file, trireme.tools.image\n"
        "from importlib.resources import files\n"
        "assert trireme.__file__.startswith(sys.argv[1]), trireme.__file__\n"
        "assert files('trireme.schema').joinpath('trireme.fbs').read_text()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(site)], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
