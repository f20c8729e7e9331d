"""Float16 on the cpu: the float32 kernels between conversions, beside the references."""

from dataclasses import replace

import numpy as np
import pytest
from cpu_run import run

import trireme
from trireme.backend.registry import open_device
from trireme.devices.cpu.compile.half import kernel_reason, widened
from trireme.devices.cpu.compile.program import REFERENCE
from trireme.devices.cpu.compile.table import native_reason
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.ir.op import all_ops, get_op
from trireme.support.errors import TriremeError
from trireme.tools.supported_ops import sample_graph

SEED = 20261126
APART = 0.02
"""The share of results that may be the other one of two float16 numbers around a tie."""


@pytest.fixture(scope="module")
def cpu():
    device = open_device("cpu", threads=1)
    yield device
    device.close()


def widened_samples(op):
    """Yield (name, graph, feeds) of an op's samples in float16 that run on float32 kernels."""
    for number, sample in enumerate(op.samples(np.random.default_rng(SEED))):
        try:
            graph = sample_graph(op, sample, half=True)
        except TriremeError:
            continue
        (node,) = graph.nodes
        if native_reason(graph, node) is None or kernel_reason(graph, node) is not None:
            continue
        places = enumerate(sample.inputs)
        given = [x for at, x in places if x is not None and at not in sample.constants]
        with np.errstate(over="ignore"):
            feeds = {
                value.id: np.asarray(x).astype(value.dtype)
                for value, x in zip(graph.input_values(), given, strict=True)
            }
        yield f"{op.name} sample {number} {sample.note}", graph, feeds


WIDENED = [op.name for op in all_ops() if any(True for _ in widened_samples(op))]


def steps_apart(a, b):
    """The float16 numbers between two arrays of them; NaN equals NaN."""
    line = []
    for one in (a, b):
        bits = one.view(np.int16).astype(np.int32)
        line.append(np.where(bits < 0, -(bits & 0x7FFF), bits))
    return np.where(np.isnan(a) & np.isnan(b), 0, np.abs(line[0] - line[1]))


def in_floats(graph, feeds):
    """The results of the float32 node on the same numbers, rounded to float16 once."""
    (node,) = graph.nodes
    (wide,) = (one for one in widened(graph)[0].nodes if one.id == node.id)
    made = widened(graph)[0]
    inputs = [None if i is None else made.values[i] for i in wide.inputs]
    read = dict(zip((i for i in wide.inputs if i is not None), node.used, strict=True))
    one = replace(
        made,
        nodes=(wide,),
        inputs=tuple({v.id for v in inputs if v is not None and v.data is None}),
        outputs=wide.outputs,
    )
    given = {i: feeds[read[i]].astype(one.values[i].dtype) for i in one.inputs}
    results = interpret(one, given)
    with np.errstate(over="ignore"):
        pairs = zip(wide.outputs, node.outputs, strict=True)
        return [results[of].astype(graph.type(out).dtype) for of, out in pairs]


def near_zero(right):
    """The error of a float32 sum of terms as large as the largest result, of which little stays."""
    finite = right[np.isfinite(right)].astype(np.float32)
    return 2e-6 * np.abs(finite).max(initial=0)


@pytest.mark.parametrize("name", WIDENED)
def test_samples_are_those_of_floats_rounded_once(cpu, name):
    print("seed", SEED)
    for what, graph, feeds in widened_samples(get_op(name)):
        got, kernels, _ = run(cpu, graph, feeds)
        assert kernels.keys() == {graph.nodes[0].id} and REFERENCE not in kernels.values(), what
        for found, right in zip(got, in_floats(graph, feeds), strict=True):
            if right.dtype == np.float16:
                far = steps_apart(found, right)
                far[np.isclose(found, right, rtol=0, atol=near_zero(right))] = 0
                assert far.max(initial=0) <= 1, what
                assert (far > 0).sum() <= max(APART * far.size, 1), what
            else:
                np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6, err_msg=what)


def test_the_usual_ops_of_nets_have_kernels():
    usual = {"average_pool", "conv", "fully_connected", "gemm", "matmul", "max_pool", "softmax"}
    assert usual <= set(WIDENED)
    assert "bit_cast" not in WIDENED


@pytest.mark.parametrize("rows", [1, "n"])
def test_a_file_of_float16_runs_natively_and_as_in_onnx_runtime(rows, tmp_path):
    """All nodes have kernels under their own ids, also where the batch is open."""
    onnxruntime = pytest.importorskip("onnxruntime")
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("net")

    def weights(*shape):
        made = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return b.constant("w", made.astype(np.float16))

    x = b.input("x", TensorType((rows, 12, 12, 8), "float16"))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NHWC"}
    y = b.add("relu", b.add("conv", x, weights(8, 3, 3, 8), **window))
    y = b.add("add", x, b.add("conv", y, weights(8, 3, 3, 8), **window))
    y = b.add("reduce_mean", y, b.constant("axes", np.array([1, 2])), keepdims=0)
    y = b.add("softmax", b.add("fully_connected", y, weights(10, 8)), axis=-1, names=["y"])
    path = tmp_path / "half.onnx"
    trireme.export(b.finish(y), path)
    peer = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with trireme.Session(path, devices=["cpu"]) as session:
        for count in (1,) if rows == 1 else (1, 3):
            feeds = {"x": rng.standard_normal((count, 12, 12, 8)).astype(np.float16)}
            (right,) = peer.run(None, feeds)
            assert steps_apart(session.run(feeds)["y"], right).max() <= 8
        assert REFERENCE not in str(session.profile(feeds))
