"""NaN, infinities and both zeros give what numpy makes of them: on every device, as on the peers.

Each float operand of each op's samples is given some odd elements, then odd ones alone.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import odd_floats
import opencl
import pytest
from op_samples import assert_close, outputs_of, sample_graph
from sweep import sweep

from trireme.backend.registry import open_device
from trireme.ir.graph import Quant
from trireme.ir.interpreter import interpret
from trireme.ir.op import Sample, get_op
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import GraphError, RunError

OPTIONS = {"cpu": {"threads": 1}, "opencl": {}, "npu": {"float32": "float16"}}
HALF_RTOL, HALF_MOST = 2e-2, 8
"""Of the npu, which rounds each operand and result to float16, of which it gets small numbers."""


def by_op():
    """The samples of each op; but those of which a kernel leaves out products with 0, which the
    reference does not, and of range, whose operands must be finite.
    """
    found = defaultdict(list)
    for op, sample, case in odd_floats.samples():
        if op.name in ("dft", "stft", "range") or sample.attrs.get("mode") in ("linear", "cubic"):
            continue
        found[op.name].append((op, sample, case))
    return found


SAMPLES = by_op()
DEFAULT = ("cast", "clip", "gelu", "max")
"""Ops tried on OpenCL when not all are: it compiles for seconds."""


def cases():
    every = [(device, name) for device in OPTIONS for name in SAMPLES]
    return sweep(every, lambda device, name: device != "opencl" or name in DEFAULT)


def small(sample):
    """The sample with its floats within HALF_MOST and none so near 0 that float16 drops it."""
    inputs = [
        np.where(np.abs(a) < 0.01, 0, np.clip(a, -HALF_MOST, HALF_MOST)).astype(a.dtype)
        if odd_floats.is_float(a)
        else a
        for a in sample.inputs
    ]
    return replace(sample, inputs=tuple(inputs))


def graphs_of(op, sample, seed):
    """Yield (what is odd, a graph, its feeds): one graph, but for what is odd in a constant.

    Weights stay numbers where a window has pads, which some kernels multiply and others leave out.
    """
    has_pads = op.name == "conv_transpose" or any(sample.attrs.get("pads") or ())
    fixed = sample.constants if has_pads else ()
    if op.name in FIRST:
        fixed = range(1, len(sample.inputs))
    count = min(outputs_of(op, sample), 1 if op.name in ONE_OUTPUT else 99)
    plain, feeds = sample_graph(op, sample, count)
    places = [i for i, a in enumerate(sample.inputs) if a is not None and i not in sample.constants]
    for what, odd in odd_floats.odd_samples(sample, seed):
        pairs = enumerate(zip(odd.inputs, sample.inputs, strict=True))
        changed = {i for i, (new, old) in pairs if new is not old}
        if changed & set(fixed):
            continue
        if not changed & sample.constants:
            yield what, plain, dict(zip(feeds, [odd.inputs[i] for i in places], strict=True))
        else:
            yield what, *sample_graph(op, odd, count)


FIRST = ("resize", "roi_align")
"""Ops of which all operands but the first must be finite."""
ONE_OUTPUT = ("max_pool", "layer_normalization", "batch_normalization")
"""Ops of which kernels make the first output alone."""


@pytest.fixture(scope="module")
def device(request, tmp_path_factory):
    """The device that a test asks for."""
    if request.param == "opencl":
        opencl.need_opencl()
    options = dict(OPTIONS[request.param])
    if request.param == "opencl":
        options["cache_dir"] = tmp_path_factory.mktemp("kernels")
    made = open_device(request.param, **options)
    yield made
    made.close()


@pytest.mark.parametrize(("device", "name"), cases(), indirect=["device"])
def test_odd_floats_on_a_device(device, name):
    taken = []
    is_npu = device.spec.name == "npu"
    for number, (op, sample, case) in enumerate(SAMPLES[name]):
        for what, graph, feeds in graphs_of(op, small(sample) if is_npu else sample, number):
            if any(device.unsupported_reason(graph, node) for node in graph.nodes):
                break
            taken.append((f"{case}: {what}", op, graph, feeds))
    if not taken:
        pytest.skip(f"{device.spec.name} has no kernel")
    graphs = {id(graph): graph for _, _, graph, _ in taken}
    made = dict(zip(graphs, device.compile(list(graphs.values())), strict=True))
    wrong = []
    for what, op, graph, feeds in taken:
        with np.errstate(all="ignore"):
            wanted = interpret(graph, feeds)
        found, _ = opencl.run(device, graph, feeds, made[id(graph)])
        for value, array in zip(graph.outputs, found, strict=True):
            rtol = HALF_RTOL if is_npu else op.rtol
            try:
                assert_close(array, wanted[value], rtol, what)
            except AssertionError as error:
                wrong.append(f"{what}: {' '.join(str(error).split())[:400]}")
    assert not wrong, f"{len(wrong)} of {len(taken)}:\n" + "\n".join(wrong)


NOT_IN_ONNX = (
    "complex_abs",
    "complex_imag",
    "complex_real",
    "detection_post_process",
    "dynamic_range_lstm",
    "python",
    "rfft2d",
    "soft_non_max_suppression",
)
DIFFERENT = {
    "cast": "tests/devices/cpu/test_elementwise.py asks ONNX Runtime",
    **dict.fromkeys(
        (
            "arg_max",
            "arg_min",
            "clip",
            "hardmax",
            "lrn",
            "max_pool",
            "reduce_max",
            "reduce_min",
            "reduce_log_sum_exp",
            "dynamic_quantize_linear",
            "tree_ensemble",
        ),
        "ONNX Runtime drops NaN",
    ),
    **dict.fromkeys(("gru", "lstm", "rnn"), "ONNX Runtime's tanh and sigmoid are finite of NaN"),
    **dict.fromkeys(
        ("batch_normalization", "instance_normalization"),
        "ONNX Runtime folds scale and mean, of which infinities cancel",
    ),
    **dict.fromkeys(
        (
            "deform_conv",
            "grid_sample",
            "det",
            "resize",
            "roi_align",
            "unique",
            "non_max_suppression",
        ),
        "ONNX Runtime does otherwise or refuses",
    ),
    "pair_probabilities": "the peer clips the probabilities of pairs",
    "matmul_nbits": "ONNX Runtime scales each weight, where an infinite scale makes NaN of 0",
    "atan2": "the peer is made of atan, which does not see the sign of 0",
}
"""Ops whose peer treats odd floats in another way than numpy does, which decides."""
PEER_RTOL = 3e-6


@pytest.mark.parametrize(
    "name", [name for name in SAMPLES if name not in (*NOT_IN_ONNX, *DIFFERENT)]
)
def test_odd_floats_on_the_peer(name):
    pytest.importorskip("onnxruntime")
    from onnx_answers import peer_outputs

    wrong, count = [], 0
    for number, (op, sample, case) in enumerate(SAMPLES[name]):
        if sample.quants or sample.out_quants:
            continue
        for what, odd in odd_floats.odd_samples(sample, number):
            graph, feeds = sample_graph(op, odd)
            with np.errstate(all="ignore"):
                values = interpret(graph, feeds)
            types = [graph.type(value) for value in graph.outputs]
            found, outputs = peer_outputs(op, odd, types)
            count += 1
            for value, peer in zip(graph.outputs[:outputs], found, strict=False):
                try:
                    assert_close(values[value], np.asarray(peer), max(op.rtol, PEER_RTOL), case)
                except AssertionError as error:
                    wrong.append(f"{case}: {what}: {' '.join(str(error).split())[:400]}")
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_operands_that_must_be_finite(odd):
    ends = np.array([0, odd, 1], np.float32)
    range_of = Sample(tuple(ends), constants=frozenset({0, 1, 2}))
    with pytest.raises(GraphError, match="no range from 0.0 to (nan|inf|-inf) by 1.0"):
        sample_graph(get_op("range"), range_of)
    image, regions = np.ones((1, 1, 4, 4), np.float32), np.array([[0, 0, odd, 3]], np.float32)
    graph, feeds = sample_graph(get_op("roi_align"), Sample((image, regions, np.array([0]))))
    with pytest.raises(RunError, match="a region has a corner that is not finite"):
        interpret(graph, feeds)


@pytest.mark.parametrize("limits", [(np.nan, None), (None, np.nan), (-1, np.nan), (np.nan, 1)])
def test_a_quantised_clip_by_nan_gives_the_least_integer(limits):
    quant = Quant((0.1,), (3,))
    x = np.arange(-128, 128).astype(np.int8)
    bounds = [None if limit is None else np.array(limit, np.float32) for limit in limits]
    sample = Sample(
        (x, *bounds), constants=frozenset({1, 2}), quants=(quant, None, None), out_quants=(quant,)
    )
    graph, feeds = sample_graph(get_op("clip"), sample)
    (wanted,) = interpret(graph, feeds).values()
    assert (wanted == -128).all()
    with Session(
        graph, devices=["cpu"], execution_options=ExecutionOptions(model_cache=None)
    ) as session:
        (found,) = session.run({"x0": x}).values()
    np.testing.assert_array_equal(found, wanted)
