"""The OpenCL device's kernels against the references: every op sample that the device takes."""

import functools

import opencl
import pytest
from op_samples import assert_close, op_samples, sample_graph
from sweep import sweep

from trireme.backend.registry import open_device
from trireme.ir.interpreter import interpret
from trireme.ir.op import get_op

FIRST_OUTPUT = ("max_pool", "layer_normalization")
SHARED = ("both broadcast", "first broadcasts", "scalar", "three inputs")
"""Broadcasting is one piece of code, tested with the ops of BROADCAST."""
BROADCAST = ("add", "less", "where")


def is_told_apart(op, sample):
    """Whether a sample tests what no other does: every kernel built takes a tenth of a second."""
    if sample.quants:
        return True
    activation = sample.attrs.get("activation", "")
    if activation and op.name in ("sub", "mul", "div", "fully_connected"):
        return False
    if op.name == "conv" and activation == sample.note and activation != "hard_swish":
        return False
    return sample.note not in SHARED or op.name in BROADCAST


EVERY_SAMPLE = ("relu", "tanh", "add", "less", "where", "clip", "pow", "cast", "reduce_sum")
"""The shapes, dtypes and broadcasting of every op's template."""

GPU_SAMPLES = (
    "conv-0-",
    "conv-1-",
    "conv-3-",
    "conv-6-",
    "conv-9-",
    "conv-20-",
    "fully_connected-0-",
    "matmul-3-",
    "matmul-4-",
    "add-1-",
    "softmax-0-",
    "reduce_mean-0-",
    "max_pool-1-",
    "transpose-0-",
    "fully_connected-17-",
    "average_pool-1-",
)


@pytest.fixture(scope="module")
def device(tmp_path_factory, request):
    """The device; with its driver's optimisation where the sweep is asked for, which takes twice as
    long."""
    opencl.need_opencl()
    made = open_device("opencl", cache_dir=tmp_path_factory.mktemp("programs"))
    if not any(item.get_closest_marker("sweep") for item in request.session.items):
        made.programs.options.append("-cl-opt-disable")
    yield made
    made.close()


@functools.cache
def samples():
    """The graphs and feeds of all samples, by id; of some ops the first output alone."""
    return {
        name: sample_graph(op, sample, 1 if op.name in FIRST_OUTPUT else None)
        for op, sample, name in op_samples()
        if is_told_apart(op, sample)
    }


@pytest.fixture(scope="module")
def executables(device, request):
    """Every sample the device takes, compiled together: one build instead of hundreds."""
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    asked = {call.params.get("name") for call in calls}
    taken = {
        name: graph
        for name, (graph, _) in samples().items()
        if name in asked
        and all(device.unsupported_reason(graph, node) is None for node in graph.nodes)
    }
    return dict(zip(taken, device.compile(list(taken.values())), strict=True))


def _always(name):
    """Of ops that differ in one expression alone: a float, special numbers, a table of bytes; of
    the others every second sample.
    """
    graph, _ = samples()[name]
    op, number = graph.nodes[0].op, int(name.split("-")[1])
    if op in EVERY_SAMPLE:
        return True
    if get_op(op).family not in ("elementwise", "reduce"):
        return number % 2 == 0
    return number == 0 or "NaN" in name or name.endswith("every_byte")


@pytest.mark.parametrize("name", sweep(samples(), _always))
def test_kernels_agree_with_the_reference(device, executables, name):
    graph, feeds = samples()[name]
    if name not in executables:
        pytest.skip(device.unsupported_reason(graph, graph.nodes[0]))
    check(device, name, executables[name])


def check(device, name, executable):
    """Run a sample and compare: floats within the op's tolerance, quantised bit for bit."""
    graph, feeds = samples()[name]
    wanted = interpret(graph, feeds)
    found, _ = opencl.run(device, graph, feeds, executable)
    rtol = get_op(graph.nodes[0].op).rtol
    for value, array in zip(graph.outputs, found, strict=True):
        quantised = graph.type(value).quant is not None
        assert_close(array, wanted[value], 0 if quantised else rtol, name)


@pytest.mark.parametrize("name", FIRST_OUTPUT)
def test_outputs_that_no_kernel_makes_are_refused(device, name):
    op, sample = next((op, sample) for op, sample, _ in op_samples() if op.name == name)
    for outputs in (1, None):
        graph, _ = sample_graph(op, sample, outputs)
        (node,) = graph.nodes
        reason = device.unsupported_reason(graph, node)
        assert bool(reason) == (len(node.outputs) > 1), reason


@pytest.mark.parametrize("tuning", ["desktop_gpu", "mobile_gpu"])
def test_kernels_cut_for_a_gpu_agree_too(tuning, tmp_path):
    opencl.need_opencl()
    device = open_device("opencl", tuning=tuning, cache_dir=tmp_path)
    names = [name for name in samples() if name.startswith(GPU_SAMPLES)]
    assert len(names) == len(GPU_SAMPLES)
    made = device.compile([samples()[name][0] for name in names])
    for name, executable in zip(names, made, strict=True):
        check(device, name, executable)


def test_weights_in_half_precision_are_close(tmp_path):
    opencl.need_opencl()
    device = open_device("opencl", precision="float16", cache_dir=tmp_path)
    for name in ("conv-3-stride_2,_uneven_pads", "fully_connected-0-classifier"):
        graph, feeds = samples()[name]
        wanted = interpret(graph, feeds)
        executable = device.compile([graph])[0]
        found, _ = opencl.run(device, graph, feeds, executable)
        assert_close(found[0], wanted[graph.outputs[0]], 2e-3, name)
