"""The OpenCL device beside its kernels: choosing, caching, errors, forks, memory, profiles."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import opencl
import pytest

import trireme.ops  # noqa: F401 - fills the registry
from trireme.builder import GraphBuilder
from trireme.calibrating.calibration import Calibration, Curve, DeviceCalibration
from trireme.calibrating.handover import Handover
from trireme.devices.cpu.device import CpuDevice
from trireme.devices.opencl import list_devices, open_device
from trireme.devices.opencl.lowering import Lowering, Tensor
from trireme.devices.opencl.pocl import sweep
from trireme.devices.opencl.programs import build_error
from trireme.devices.opencl.works import TERM_LIMITS
from trireme.disk_cache import DiskCache
from trireme.errors import CompileError, DeviceError
from trireme.graph import TensorType
from trireme.interpret import interpret
from trireme.opening import open_device as open_by_name
from trireme.session import Session
from trireme.tools.cli import main


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def device(cache):
    opencl.need_opencl()
    made = open_device(cache_dir=cache)
    yield made
    made.close()


def region():
    """A graph with a chain to fuse, a value read twice, an alias and two outputs."""
    builder = GraphBuilder("region")
    x = builder.input("x", TensorType((3, 5, 7), "float32"))
    scale = builder.constant("scale", np.linspace(-2, 2, 7, dtype=np.float32))
    shape = builder.constant("shape", np.array([15, 7]))
    y = builder.add("relu", builder.add("add", builder.add("mul", x, scale), x))
    flat = builder.add("reshape", builder.add("tanh", y), shape)
    z = builder.add("sub", flat, builder.add("reshape", y, shape))
    return builder.finish(flat, z)


def feed(graph, seed=7):
    rng = np.random.default_rng(seed)
    return {v.id: rng.standard_normal(v.type.dims).astype(np.float32) for v in graph.input_values()}


def assert_right(device, graph, found):
    wanted = interpret(graph, feed(graph))
    for value, array in zip(graph.outputs, found, strict=True):
        np.testing.assert_allclose(array, wanted[value], rtol=1e-5, atol=1e-6)


def test_a_region_is_one_launch_with_fused_chains_and_aliases(device):
    graph = region()
    executable = device.compile([graph])[0]
    found, spans = opencl.run(device, graph, feed(graph), executable, profile=True)
    assert_right(device, graph, found)
    assert len(executable.steps) == 3
    assert executable.kernels[0] == executable.kernels[2] == "mul+add+relu"
    assert executable.kernels[4] == "alias"
    assert [span.nodes for span in spans] == [(0, 1, 2), (3,), (6,)]
    assert all(a.end_s <= b.start_s for a, b in zip(spans, spans[1:], strict=False))
    assert all(span.start_s < span.end_s for span in spans)


FOLLOWED = {
    "matmul": [((4, 6), (6, 8)), [(8,), (4, 8)], [(4, 1)]],
    "matmul of a vector": [((2, 3, 6), (6,)), [(2, 3)], [(3,)]],
}
"""Shapes of a product's inputs, of what its kernel adds to the result, and of what it does not."""


def test_a_product_takes_along_what_fits_its_result(device):
    builder, outs, expected = GraphBuilder("followed"), [], []
    for shapes, fused, apart in FOLLOWED.values():
        x, w = (builder.input("", TensorType(shape, "float32")) for shape in shapes)
        for shape in (*fused, *apart):
            other = builder.input("", TensorType(shape, "float32"))
            outs.append(builder.add("add", builder.add("matmul", x, w), other))
            expected.append(shape in fused)
    graph = builder.finish(*outs)
    executable = device.compile([graph])[0]
    found, _ = opencl.run(device, graph, feed(graph), executable)
    assert_right(device, graph, found)
    kernels = [executable.kernels[node.id] for node in graph.nodes if node.op == "add"]
    assert ["+add" in kernel for kernel in kernels] == expected, kernels


def test_a_bound_call_keeps_its_memory_alive(device):
    graph = region()
    executable = device.compile([graph])[0]
    places = [device.alloc(graph.type(i).nbytes) for i in (*graph.inputs, *graph.outputs)]
    x = feed(graph)[graph.inputs[0]]
    device.write(places[0], x)
    call = executable.bind(places, device.alloc(max(executable.scratch_bytes, 1)))
    del executable
    for _ in range(9):
        device.write(device.alloc(1 << 16), np.zeros(1 << 16, np.uint8))
    call.launch().wait()
    found = np.empty((15, 7), np.float32)
    device.read(places[1], found)
    wanted = interpret(graph, {graph.inputs[0]: x})[graph.outputs[0]]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_inputs_and_constants_returned_through_aliases_are_copied(device):
    builder = GraphBuilder("aliases")
    x = builder.input("x", TensorType((6,), "float32"))
    fixed = builder.constant("fixed", np.arange(6, dtype=np.float32))
    shape = builder.constant("shape", np.array([2, 3]))
    y = builder.add("tanh", x)
    outs = [builder.add("reshape", v, shape) for v in (x, fixed, y, y)]
    graph = builder.finish(*outs)
    found, _ = opencl.run(device, graph, feed(graph))
    assert_right(device, graph, found)


def test_programs_come_from_the_cache_and_a_damaged_one_is_built_again(tmp_path):
    opencl.need_opencl()
    graph = region()
    for damage in (None, None, b"", b"garbage" * 99, "truncate"):
        for path in tmp_path.rglob("*.bin"):
            data = path.read_bytes()
            if damage is not None:
                path.write_bytes(data[: len(data) // 2] if damage == "truncate" else damage)
        fresh = open_device(cache_dir=tmp_path)
        found, _ = opencl.run(fresh, graph, feed(graph))
        assert_right(fresh, graph, found)
        fresh.close()
        assert len(list(tmp_path.rglob("*.bin"))) == 1


def test_a_program_that_the_driver_refuses_is_built_again_and_named(tmp_path, caplog):
    opencl.need_opencl()
    graph = region()
    for _ in range(2):
        fresh = open_device(cache_dir=tmp_path)
        found, _ = opencl.run(fresh, graph, feed(graph))
        assert_right(fresh, graph, found)
        fresh.close()
        (kept,) = tmp_path.rglob("*.bin")
        stored = DiskCache(kept.parent, kept.suffix, most=9)
        assert stored.load(kept.stem) != b"no program"
        stored.store(kept.stem, b"no program")
    assert "the driver refused a cached program" in caplog.text


def test_an_unusable_cache_folder_is_no_error(tmp_path):
    opencl.need_opencl()
    (tmp_path / "file").write_text("not a folder")
    fresh = open_device(cache_dir=tmp_path / "file")
    graph = region()
    assert_right(fresh, graph, opencl.run(fresh, graph, feed(graph))[0])


def test_a_build_failure_shows_the_log_and_the_source_line(device):
    graph = region()
    low = Lowering(graph, device.tuning)
    tensor = Tensor("y", "float", low.ref(graph.outputs[0]), writes=True)
    low.emit([graph.nodes[0]], "broken", [tensor], (4,), "  y[i0] = no_such_name;")
    with pytest.raises(CompileError) as caught:
        device.programs.build(low.sources, "")
    text = str(caught.value)
    assert "no_such_name" in text.split("source line")[1]
    assert "log: " in text
    assert "source line" in text


def test_build_errors_of_other_compilers_name_their_line():
    source = "first\nsecond\nthird"
    for message in (
        "<kernel>:2:7: error: x",
        "error: /t/a.cl:2:7: x",
        '"a.cl", line 2: error: x',
        "a.cl(2) : error: x",
    ):
        assert "source line 2: second" in str(build_error(message, source))


def test_devices_are_chosen_by_name_and_an_absent_one_lists_what_is_there():
    opencl.need_opencl()
    found = list_devices()[0]
    assert open_device(platform=found.platform.upper()).found.device == found.device
    with pytest.raises(DeviceError, match="no OpenCL device with platform 'voodoo'") as caught:
        open_device(platform="voodoo")
    assert found.device in str(caught.value)
    with pytest.raises(DeviceError, match="unknown precision"):
        open_device(precision="float8")
    with pytest.raises(DeviceError, match="unknown tuning"):
        open_device(tuning="toaster")


def test_a_checker_is_never_chosen_unasked():
    opencl.need_opencl()
    assert "oclgrind" not in open_device().spec.description.lower()


def test_the_spec_says_whether_cores_are_shared(device):
    shared = device.found.kind == "cpu"
    assert device.spec.resource_group == ("cpu" if shared else "opencl")
    assert device.spec.memory == "opencl"
    assert device.spec.flops["float32"] > 0


FAR = Handover(245e-9, 0.5e-9)


def test_on_the_cpus_cores_it_says_how_far_apart_they_are(device, monkeypatch):
    """What the cpu device measures; a GPU has none, nor counts its kernels by them."""
    monkeypatch.setattr(CpuDevice, "handover", lambda cpu: FAR)
    if not device.spec.cores:
        assert device.handover() is None
        pytest.skip("no driver on the CPU")
    assert device.handover() == FAR and device.handover() == FAR
    assert all(work.terms.keys() >= TERM_LIMITS.keys() for work in device.works(region()))
    monkeypatch.setattr(device, "spec", replace(device.spec, cores=frozenset()))
    assert device.handover() is None
    assert not any(work.terms.keys() & TERM_LIMITS.keys() for work in device.works(region()))


def test_it_is_priced_for_how_far_apart_they_are(device, monkeypatch, tmp_path, capsys):
    """Session, profile and `calibrate --cores` treat it as they do the cpu device."""
    if not device.spec.cores:
        pytest.skip("no driver on the CPU")
    monkeypatch.setattr(CpuDevice, "handover", lambda cpu: FAR)
    path = tmp_path / "c.json"
    monkeypatch.setenv("TRIREME_CALIBRATION", str(path))
    curves = {"elementwise": Curve(1e-6, {"handed_bytes": 0.2})}
    cores = {"near": Handover(56e-9, 0.1e-9)}
    Calibration.of_devices(
        DeviceCalibration(
            "opencl", device.spec.description, 0.0, 0.0, curves, cores=cores, apart="near"
        )
    ).save(path)

    def opened():
        return Session(region(), devices=[device], calibration=path)

    with opened() as session:
        before, (said,) = session.placement.makespan_s, session.cores
        profile = session.profile({"x": np.zeros((3, 5, 7), np.float32)}, runs=2, warmup=0)
    assert said.have_moved and profile.cores == (said,)
    assert str(said).endswith("trireme calibrate --cores --devices opencl")
    assert main(["calibrate", "--cores", "--devices", "opencl"]) == 0
    assert "the cores have no cache in common" in capsys.readouterr().out
    with opened() as session:
        assert session.placement.makespan_s > before and not session.cores[0].have_moved


def test_a_closed_device_refuses(cache):
    opencl.need_opencl()
    closed = open_device(cache_dir=cache)
    closed.close()
    closed.close()
    with pytest.raises(DeviceError, match="closed"):
        closed.alloc(64)


def test_memory_beyond_the_device_is_an_error(device):
    with pytest.raises(DeviceError, match="bytes"):
        device.alloc(1 << 60)


def _in_fork(device, results):
    messages = []
    for use in (lambda: device.alloc(64), open_device, list_devices):
        try:
            use()
            messages.append("no error")
        except DeviceError as error:
            messages.append(str(error))
    results.put(messages)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_told_instead_of_hanging(device):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_in_fork, args=(device, results))
    child.start()
    messages = results.get()
    child.join(10)
    assert len(messages) == 3
    assert all("forked" in message and "spawn" in message for message in messages)


def python(code, **environment):
    """Run code in a fresh interpreter and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_OPEN = "from trireme.devices.opencl import open_device; d = open_device(cache_dir='{cache}')"
_RUN = """
import numpy as np
import trireme.ops  # noqa: F401 - fills the registry
from trireme.builder import GraphBuilder
from trireme.calibrating.calibration import Calibration, Curve, DeviceCalibration
from trireme.graph import TensorType
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
    assert list_devices() == []
    with pytest.raises(DeviceError, match="no OpenCL device") as caught:
        open_by_name("opencl")
    assert "no OpenCL platform was found" in str(caught.value)
    assert "pocl-binary-distribution" in str(caught.value)


def test_importing_the_package_touches_no_driver():
    code = (
        "import sys, trireme.devices.opencl\n"
        "assert 'pyopencl' not in sys.modules\n"
        "import os; assert 'POCL_CACHE_DIR' not in os.environ"
    )
    environment = {k: v for k, v in os.environ.items() if k != "POCL_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_products_through_local_memory_agree(cache):
    opencl.need_opencl()
    builder = GraphBuilder("product")
    rng = np.random.default_rng(3)
    x = builder.input("x", TensorType((45, 37), "float32"))
    w = builder.constant("w", rng.standard_normal((50, 37)).astype(np.float32))
    b = builder.constant("b", rng.standard_normal(50).astype(np.float32))
    graph = builder.finish(builder.add("fully_connected", x, w, b, activation="relu"))
    device = open_device(tuning="desktop_gpu", cache_dir=cache)
    executable = device.compile([graph])[0]
    assert executable.kernels[0].endswith("_local")
    found, _ = opencl.run(device, graph, feed(graph), executable)
    wanted = interpret(graph, feed(graph))[graph.outputs[0]]
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-5)


def test_two_threads_share_an_executable(device):
    graph = region()
    executable = device.compile([graph])[0]
    with ThreadPoolExecutor(4) as pool:
        results = list(
            pool.map(lambda _: opencl.run(device, graph, feed(graph), executable)[0], range(24))
        )
    for found in results:
        assert_right(device, graph, found)


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
