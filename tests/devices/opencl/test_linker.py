"""PoCL without a linker, or without what it links: an error that says so, never an abort."""

import os
import subprocess
import sys
from pathlib import Path

import opencl
import pytest

from trireme.devices.opencl import linker, platforms
from trireme.devices.opencl.platforms import choose
from trireme.support.errors import DeviceError

BUILT_FOR = Path("/usr/local/bin/ld")
"""PoCL's clang looks here before it looks on PATH."""


@pytest.fixture
def pocl_path(tmp_path, monkeypatch):
    """Sets PATH to an empty folder and returns it; skips where PoCL does not run the kernels."""
    opencl.need_opencl()
    if not choose(None, None).is_pocl_cpu or BUILT_FOR.exists():
        pytest.skip("PoCL does not need a linker on PATH here")
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_the_demo_leaves_opencl_out_without_a_linker(pocl_path):
    done = subprocess.run(
        [sys.executable, "-m", "trireme", "demo"],
        env={**os.environ, "COLUMNS": "60"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "left out: opencl: PoCL cannot link kernels here" in done.stdout
    assert "apt-get install gcc libc6-dev" in done.stdout
    assert "Both runs give the same digits." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 60


def test_a_library_that_is_not_there_is_named(pocl_path):
    """A container with binutils alone has `ld` and nothing to link."""
    (pocl_path / "ld").write_text("#!/bin/sh\necho 'ld: cannot find -lgcc' >&2\nexit 1\n")
    (pocl_path / "ld").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linker, "_GCC", pocl_path)
        with pytest.raises(DeviceError, match="PoCL cannot link kernels here") as caught:
            choose(None, None)
    assert "ld: cannot find -lgcc" in caught.value.facts[0]
    assert caught.value.fix == linker.FIX


def test_a_linker_in_an_unusual_place_is_tried(monkeypatch, tmp_path):
    opencl.need_opencl()
    monkeypatch.setattr(linker, "_GCC", tmp_path)
    assert choose(None, None)


@pytest.mark.parametrize("missing", ["nothing", "ld", "libgcc.a", "libc.so"])
def test_each_part_of_a_toolchain_is_looked_for(missing, monkeypatch, tmp_path):
    for name in ("ld", "x86_64-linux-gnu/12/libgcc.a", "libc.so"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name != missing:
            path.touch(0o755)
    monkeypatch.setattr(linker, "_GCC", tmp_path)
    monkeypatch.setattr(linker, "_LIBC_FOLDERS", (str(tmp_path),))
    assert linker._has_toolchain(str(tmp_path)) == (missing == "nothing")


@pytest.mark.parametrize(
    ("installed", "variable", "advice"),
    [
        (False, "", "install a driver, or the package pocl-binary-distribution"),
        (True, "OCL_ICD_VENDORS", "unset OCL_ICD_VENDORS (/elsewhere), which hides PoCL"),
        (True, "", "it is installed, but its driver does not load"),
    ],
)
def test_the_advice_knows_what_is_installed(installed, variable, advice, monkeypatch):
    for name in platforms._HIDE_POCL:
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "/elsewhere")
    monkeypatch.setattr(platforms.pocl, "may_be_present", lambda: installed)
    monkeypatch.setattr(platforms, "find_devices", list)
    with pytest.raises(DeviceError) as caught:
        choose(None, None)
    assert advice in caught.value.fix
