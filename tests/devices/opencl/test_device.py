"""The OpenCL device beside its kernels: choosing, caching, errors, cores, memory."""

import warnings
from dataclasses import replace

import numpy as np
import opencl
import pytest
from cpu_run import node_graph

from trireme.backend.core_latency import CoreLatency
from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration, Curve, DeviceCalibration
from trireme.devices.cpu.device import CpuDevice
from trireme.devices.opencl.cost_features import TERM_LIMITS
from trireme.devices.opencl.lowering import Lowering, Pointer
from trireme.devices.opencl.platforms import find_devices
from trireme.devices.opencl.programs import build_error
from trireme.ir.interpreter import interpret
from trireme.runtime.session.session import Session
from trireme.support.disk_cache import DiskCache
from trireme.support.errors import CompileError, DeviceError, FaultKind
from trireme.tools.cli import main


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def device(cache):
    opencl.need_opencl()
    made = open_device("opencl", cache_dir=cache)
    yield made
    made.close()


EMPTY = {
    "conv": (
        [(0, 5, 6, 3), (4, 3, 3, 3)],
        dict(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1, layout="NHWC"),
    ),
    "max_pool": (
        [(0, 5, 6, 3)],
        dict(kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), layout="NHWC"),
    ),
    "fully_connected": ([(0, 3), (4, 3)], {}),
    "matmul": ([(0, 2, 3), (3, 4)], {}),
    "softmax": ([(0, 3)], {"axis": -1}),
    "add": ([(0, 3), (3,)], {}),
    "layer_normalization": ([(0, 3), (3,)], {"axis": -1}),
    "transpose": ([(0, 3)], {}),
    "concat": ([(0, 3), (0, 3)], {"axis": 0}),
    "reduce_sum": ([(0, 3)], {}),
}


@pytest.mark.parametrize("op", EMPTY)
def test_an_empty_batch(device, op):
    """A kernel was cut into tiles of no pixels."""
    shapes, attrs = EMPTY[op]
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    graph, feeds = node_graph(op, arrays, attrs, set(range(1, len(arrays))) - {0})
    assert device.unsupported_reason(graph, graph.nodes[0]) is None
    found, _ = opencl.run(device, graph, feeds)
    (wanted,) = interpret(graph, feeds).values()
    np.testing.assert_array_equal(found[0], wanted)


def test_programs_come_from_the_cache_and_a_damaged_one_is_built_again(tmp_path):
    opencl.need_opencl()
    graph = opencl.region()
    for damage in (None, None, b"", b"garbage" * 99, "truncate"):
        for path in tmp_path.rglob("*.bin"):
            data = path.read_bytes()
            if damage is not None:
                path.write_bytes(data[: len(data) // 2] if damage == "truncate" else damage)
        fresh = open_device("opencl", cache_dir=tmp_path)
        found, _ = opencl.run(fresh, graph, opencl.feed(graph))
        opencl.assert_right(graph, found)
        fresh.close()
        assert len(list(tmp_path.rglob("*.bin"))) == 1


def test_a_program_that_the_driver_refuses_is_built_again_and_named(tmp_path, caplog):
    opencl.need_opencl()
    graph = opencl.region()
    for _ in range(2):
        fresh = open_device("opencl", cache_dir=tmp_path)
        found, _ = opencl.run(fresh, graph, opencl.feed(graph))
        opencl.assert_right(graph, found)
        fresh.close()
        (kept,) = tmp_path.rglob("*.bin")
        stored = DiskCache(kept.parent, kept.suffix, most=9)
        assert stored.load(kept.stem) != b"no program"
        stored.store(kept.stem, b"no program")
    assert "the driver refused a cached program" in caplog.text


@pytest.mark.parametrize("point", ["enqueue_copy", "enqueue_nd_range_kernel"])
def test_work_that_finds_no_memory_is_out_of_memory_and_the_next_run_is_right(point, monkeypatch):
    """NVIDIA's driver gives a buffer its memory at the first copy, so no allocation fails."""
    opencl.need_opencl()
    import pyopencl as cl

    def refuse(*args, **more):
        raise cl.MemoryError(cl._cl._ErrorRecord(msg="", code=-4, routine=f"cl{point}"))

    graph = opencl.region()
    x = opencl.feed(graph)[graph.inputs[0]]
    with Session(graph, devices=["opencl"]) as session:
        with monkeypatch.context() as patch, pytest.raises(DeviceError) as caught:
            patch.setattr(cl, point, refuse)
            session.run({"x": x})
        assert caught.value.kind is FaultKind.OUT_OF_MEMORY
        opencl.assert_right(graph, list(session.run({"x": x}).values()))


def test_a_piece_of_memory_that_is_too_large_is_out_of_memory(device):
    with pytest.raises(DeviceError, match="in one piece") as caught:
        device.alloc(device.spec.buffer_bytes + 1)
    assert caught.value.kind is FaultKind.OUT_OF_MEMORY


def test_an_unusable_cache_folder_is_no_error(tmp_path):
    opencl.need_opencl()
    (tmp_path / "file").write_text("not a folder")
    fresh = open_device("opencl", cache_dir=tmp_path / "file")
    graph = opencl.region()
    opencl.assert_right(graph, opencl.run(fresh, graph, opencl.feed(graph))[0])


def test_a_build_failure_shows_the_log_and_the_source_line(device):
    graph = opencl.region()
    low = Lowering(graph, device.tuning)
    tensor = Pointer("y", "float", low.ref(graph.outputs[0]), writes=True)
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


def test_a_compiler_that_remarks_is_not_heard_except_at_debug(tmp_path, caplog):
    """NVIDIA's compiler remarks on every program, and pyopencl warns of it in the terminal."""
    opencl.need_opencl()
    import pyopencl as cl

    class Program:
        def __init__(self, *_):
            pass

        def build(self, *_, **__):
            cl.compiler_output("remark")
            return self

        def get_build_info(self, _, what):
            return "registers: 40\n" if what == cl.program_build_info.LOG else ""

        def get_info(self, _):
            return [b"binary"]

    device = open_device("opencl", cache_dir=tmp_path)
    programs = device.programs
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(cl, "Program", Program)
        programs.build({"quiet": "text"}, "")
        assert "registers" not in caplog.text
        programs.built.clear()
        with caplog.at_level("DEBUG", logger="trireme.devices.opencl.programs"):
            programs.build({"quiet": "text"}, "")  # from the cache
        assert "registers: 40" in caplog.text
        with pytest.raises(cl.CompilerWarning):
            cl.compiler_output("the user's own filters stay")
    device.close()


def test_devices_are_chosen_by_name_and_an_absent_one_lists_what_is_there():
    opencl.need_opencl()
    found = find_devices()[0]
    assert open_device("opencl", platform=found.platform.upper()).found.device == found.device
    with pytest.raises(DeviceError, match="no OpenCL device with platform 'voodoo'") as caught:
        open_device("opencl", platform="voodoo")
    assert found.device in str(caught.value)
    with pytest.raises(DeviceError, match="unknown precision"):
        open_device("opencl", precision="float8")
    with pytest.raises(DeviceError, match="unknown tuning"):
        open_device("opencl", tuning="toaster")


def test_a_checker_is_never_chosen_unasked():
    opencl.need_opencl()
    assert "oclgrind" not in open_device("opencl").spec.description.lower()


def test_the_spec_says_whether_cores_are_shared(device):
    shared = device.found.kind == "cpu"
    assert device.spec.resource_group == ("cpu" if shared else "opencl")
    assert device.spec.memory == "opencl"
    assert device.spec.flops["float32"] > 0


FAR = CoreLatency(245e-9, 0.5e-9)


def test_on_the_cpus_cores_it_says_how_far_apart_they_are(device, monkeypatch):
    """What the cpu device measures; a GPU has none, nor counts its kernels by them."""
    monkeypatch.setattr(CpuDevice, "core_latency", lambda cpu: FAR)
    if not device.spec.cores:
        assert device.core_latency() is None
        pytest.skip("no driver on the CPU")
    assert device.core_latency() == FAR and device.core_latency() == FAR
    assert all(
        work.terms.keys() >= TERM_LIMITS.keys() for work in device.cost_features(opencl.region())
    )
    monkeypatch.setattr(device, "spec", replace(device.spec, cores=frozenset()))
    assert device.core_latency() is None
    assert not any(
        work.terms.keys() & TERM_LIMITS.keys() for work in device.cost_features(opencl.region())
    )


def test_it_is_priced_for_how_far_apart_they_are(device, monkeypatch, tmp_path, capsys):
    """Session, profile and `calibrate --cores` treat it as they do the cpu device."""
    if not device.spec.cores:
        pytest.skip("no driver on the CPU")
    monkeypatch.setattr(CpuDevice, "core_latency", lambda cpu: FAR)
    path = tmp_path / "c.json"
    monkeypatch.setenv("TRIREME_CALIBRATION", str(path))
    curves = {"elementwise": Curve(1e-6, {"handed_bytes": 0.2})}
    cores = {"near": CoreLatency(56e-9, 0.1e-9)}
    Calibration.of_devices(
        DeviceCalibration(
            "opencl", device.spec.description, 0.0, 0.0, curves, cores=cores, apart="near"
        )
    ).save(path)

    def opened():
        return Session(opencl.region(), devices=[device], calibration=path)

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
    closed = open_device("opencl", cache_dir=cache)
    closed.close()
    closed.close()
    with pytest.raises(DeviceError, match="closed"):
        closed.alloc(64)


def test_memory_beyond_the_device_is_an_error(device):
    with pytest.raises(DeviceError, match="bytes"):
        device.alloc(1 << 60)
