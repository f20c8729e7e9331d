"""The OpenCL driver in a process: absent, beside llvmlite, after a fork, after a kill."""

import multiprocessing
import os
import subprocess
import sys

import opencl
import pytest

from trireme.backend.registry import open_device
from trireme.backend.registry import open_device as open_by_name
from trireme.devices.opencl.platforms import find_devices
from trireme.devices.opencl.pocl import sweep
from trireme.support.errors import DeviceError


def _in_fork(device, results):
    messages = []
    for use in (lambda: device.alloc(64), lambda: open_device("opencl"), find_devices):
        try:
            use()
            messages.append("no error")
        except DeviceError as error:
            messages.append(str(error))
    results.put(messages)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_told_instead_of_hanging(tmp_path):
    opencl.need_opencl()
    device = open_device("opencl", cache_dir=tmp_path)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_in_fork, args=(device, results))
    child.start()
    messages = results.get()
    child.join(10)
    device.close()
    assert len(messages) == 3
    assert all("forked" in message and "spawn" in message for message in messages)


def python(code):
    """Run code in a fresh interpreter, and return what it prints."""
    environment = {k: v for k, v in os.environ.items() if k != "POCL_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_OPEN = (
    "from trireme.backend.registry import open_device; "
    "d = open_device('opencl', cache_dir='{cache}')"
)
_RUN = """
import numpy as np
import trireme.ops  # noqa: F401 - fills the registry
from trireme.ir.builder import GraphBuilder
from trireme.cost.calibration import Calibration, Curve, DeviceCalibration
from trireme.ir.graph import TensorType
import trireme.ops
b = GraphBuilder("g")
g = b.finish(b.add("tanh", b.input("x", TensorType((64,), "float32"))))
e = d.compile([g])[0]; a, c = d.alloc(256), d.alloc(256)
d.write(a, np.ones(64, np.float32)); e.bind([a, c], None).launch().wait()
y = np.empty(64, np.float32); d.read(c, y); print(round(float(y.sum()), 3))
"""
_LLVM = """
import llvmlite.binding as llvm
llvm.initialize_native_target(); llvm.initialize_native_asmprinter()
m = llvm.parse_assembly("define i32 @f() {{ ret i32 7 }}")
e = llvm.create_mcjit_compiler(m, llvm.Target.from_default_triple().create_target_machine())
e.finalize_object(); import ctypes
assert ctypes.CFUNCTYPE(ctypes.c_int)(e.get_function_address("f"))() == 7
"""


@pytest.mark.parametrize("first", ["llvmlite", "opencl"])
def test_llvmlite_and_the_driver_live_in_one_process(tmp_path, first):
    opencl.need_opencl()
    parts = [_LLVM.format(), _OPEN.format(cache=tmp_path) + _RUN]
    code = "\n".join(parts if first == "llvmlite" else parts[::-1])
    assert python(code) == "48.742"


def test_without_a_driver_the_error_says_so(monkeypatch):
    opencl.need_opencl()

    def none():
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    cl = pytest.importorskip("pyopencl")
    monkeypatch.setattr(cl, "get_platforms", none)
    assert find_devices() == []
    with pytest.raises(DeviceError, match="no OpenCL device") as caught:
        open_by_name("opencl")
    assert "no OpenCL platform was found" in str(caught.value)
    assert "pocl-binary-distribution" in str(caught.value)


def test_importing_the_package_touches_no_driver():
    python(
        "import sys, trireme.devices.opencl\n"
        "assert 'pyopencl' not in sys.modules\n"
        "import os; assert 'POCL_CACHE_DIR' not in os.environ"
    )


def test_folders_of_killed_processes_are_swept(tmp_path):
    """Those that are old and that nobody holds; never a live process's, or anything else."""
    folders = {}
    for name in ("dead", "alive", "fresh"):
        folders[name] = tmp_path / f"trireme-pocl-{name}"
        (folders[name] / "sub").mkdir(parents=True)
    other, link = tmp_path / "other-dead", tmp_path / "trireme-pocl-link"
    other.mkdir()
    link.symlink_to(other)
    for name in ("dead", "alive"):
        os.utime(folders[name], (0, 0))
    hold = "import sys, time; from trireme.devices.opencl.pocl import _hold; _hold(sys.argv[1])"
    hold += "; print('held', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(folders["alive"])], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            sweep(tmp_path)
            assert [name for name in folders if folders[name].exists()] == ["alive", "fresh"]
            assert other.exists() and link.is_symlink()
        finally:
            holder.kill()
    sweep(tmp_path)
    assert [name for name in folders if folders[name].exists()] == ["fresh"]
