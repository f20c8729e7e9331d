"""What is true of every kind of device: what it declares, refuses, compiles, and keeps in memory.

The null device of examples/ is one of them: it is what a new device begins with.
"""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from op_samples import assert_close, sample_graph
from opencl import run
from zoo import CHECKOUT

import trireme.ops  # noqa: F401 - fills the registry
from trireme.backend import registry
from trireme.backend.device import NodeSpan
from trireme.backend.registry import device_names, kind_named, open_device, register_device
from trireme.devices.described import load_soc
from trireme.ir.interpreter import interpret
from trireme.ir.op import all_ops, get_op
from trireme.support.errors import DeviceError, TriremeError

SEED = 20261123
NAMES = (*device_names(), "null")


def null_kind():
    path = CHECKOUT / "examples" / "null_device.py"
    spec = importlib.util.spec_from_file_location("example_null_device", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module.KIND


@pytest.fixture(scope="module", autouse=True)
def with_null():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_KINDS", dict(registry._KINDS))
        register_device(null_kind())
        yield


@pytest.fixture(params=NAMES)
def kind(request):
    return kind_named(request.param)


@pytest.fixture(scope="module", params=NAMES)
def device(request):
    try:
        opened = open_device(request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    yield opened
    opened.close()


def samples(ops):
    """Every sample of some ops, as a graph and its feeds; those that make no graph are left out."""
    for op in ops:
        for sample in op.samples(np.random.default_rng(SEED)):
            try:
                yield sample_graph(op, sample)
            except TriremeError:  # strings, and shapes that data decide
                continue


def runnable(device):
    """Graphs of one node that the device has a kernel for, and their feeds."""
    for graph, feeds in samples(map(get_op, ("relu", "add", "max_pool"))):
        if device.unsupported_reason(graph, graph.nodes[0]) is None:
            yield graph, feeds


def test_every_option_is_declared(kind):
    assert kind.summary and kind.name
    for one in kind.declared():
        assert one.help and not one.help.endswith("."), f"{kind.name}.{one.name}"
        assert not one.choices or one.default in (*one.choices, None)
    assert kind.options() == kind.options()


def test_a_wrong_option_is_a_sentence(kind):
    with pytest.raises(DeviceError, match=f"{kind.name}: unknown option nonsense"):
        open_device(kind.name, nonsense=1)
    for one in kind.declared():
        with pytest.raises(DeviceError, match=f"{kind.name}: {one.name} is .*, expected"):
            open_device(kind.name, **{one.name: object()})
        if one.choices:
            with pytest.raises(DeviceError, match=f"{kind.name}: unknown {one.name} 'no such'"):
                open_device(kind.name, **{one.name: "no such"})


def test_instances_are_as_declared(kind):
    if kind.instances:
        try:
            open_device(f"{kind.name}#1").close()
        except DeviceError as error:
            pytest.skip(str(error))
    else:
        with pytest.raises(DeviceError, match="has no instances"):
            open_device(f"{kind.name}#1")


def test_what_is_found_can_be_opened(kind):
    if not kind.found():
        with pytest.raises(DeviceError):
            open_device(kind.name)


def test_the_description_is_of_the_device(device):
    assert device.spec.name == device.spec.kind in NAMES
    check_description(device.spec)


def check_description(spec):
    assert spec.description and spec.flops and min(spec.flops.values()) > 0
    assert spec.bandwidth > 0 and spec.launch_s >= 0 and spec.alignment >= 1
    assert spec.clock in ("wall", "virtual")


def test_a_refusal_is_one_sentence(device):
    check_refusals(device)


def check_refusals(device):
    for graph, _ in samples(all_ops()):
        reason = device.unsupported_reason(graph, graph.nodes[0])
        assert reason is None or (reason.strip() == reason != "" and "\n" not in reason)


@pytest.mark.parametrize("machine", ["rk3588", "coral_dev_board"])
def test_described_devices_say_what_they_are_too(machine):
    for device in load_soc(machine).devices().values():
        check_description(device.spec)
        check_refusals(device)


def test_a_demand_is_one_sentence(kind):
    assert all(said and "\n" not in said for said in kind.demands())


def test_memory_keeps_what_is_written(device):
    whole = device.alloc(1000)
    assert whole.memory == device.spec.memory and whole.offset == 0 and whole.nbytes >= 1000
    part, data = whole.at(256, 40), np.arange(10, dtype=np.float32)
    device.write(whole, np.full(1000, 7, np.uint8))
    device.write(part, data)
    back, around = np.empty_like(data), np.empty(1000, np.uint8)
    device.start_read(part, back).wait()
    device.read(whole, around)
    np.testing.assert_array_equal(back, data)
    assert set(around[:256]) == set(around[296:]) == {7}


def test_regions_give_the_reference_and_name_their_kernels(device):
    done = 0
    for graph, feeds in runnable(device):
        (executable,) = device.compile([graph])
        assert set(executable.kernels) == {node.id for node in graph.nodes}
        assert all(executable.kernels.values())
        kept = {value: np.copy(array) for value, array in feeds.items()}
        got, spans = run(device, graph, feeds, executable, profile=True)
        again, _ = run(device, graph, feeds, executable)
        want = interpret(graph, feeds)
        for value, first, second in zip(graph.outputs, got, again, strict=True):
            assert_close(first, want[value], 1e-3)
            np.testing.assert_array_equal(first, second)
        for value, array in kept.items():
            np.testing.assert_array_equal(feeds[value], array)
        assert all(isinstance(span, NodeSpan) and span.end_s >= span.start_s for span in spans)
        assert {node for span in spans for node in span.nodes} <= {0}
        done += 1
    assert done, "no sample runs here"


def test_nothing_to_compile_is_nothing(device):
    assert device.compile([]) == []


def test_closing_twice_is_harmless(kind):
    try:
        opened = open_device(kind.name)
    except DeviceError as error:
        pytest.skip(str(error))
    opened.finish()
    opened.close()
    opened.close()


def test_declarations_are_read_without_a_driver_or_a_compiler():
    code = (
        "import sys; from trireme.backend.registry import device_names, kind_named\n"
        "for name in device_names(): kind_named(name).declared()\n"
        "heavy = {'llvmlite', 'pyopencl', 'pocl_binary_distribution', 'flatbuffers'}\n"
        "print(*heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
