"""Random If, Loop and Scan in one another: the bits of ONNX Runtime, in every way of running."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from lab.fuzz.nested import nested
from onnx import parser
from programs import HEAD
from sweep import sweep

from trireme.converters.onnx import convert
from trireme.ir.interpreter import interpret
from trireme.ir.verify import check
from trireme.passes.pipeline import PASSES, optimise
from trireme.runtime.program.options import AS_GIVEN, ExecutionOptions
from trireme.runtime.session.session import Session

DYNAMIC = ExecutionOptions(schedule="dynamic")
WAYS = (
    ("serial", ExecutionOptions()),
    ("parallel", ExecutionOptions()),
    ("serial", ExecutionOptions(execution="interactive")),
    ("parallel", ExecutionOptions(subgraphs="split")),
    ("serial", DYNAMIC),
    ("parallel", DYNAMIC),
    ("parallel", AS_GIVEN),
)


def peers(model):
    """Two sessions of ONNX Runtime; where they disagree, it reads memory that is used again."""
    for level, reuses in (("ORT_ENABLE_ALL", True), ("ORT_DISABLE_ALL", False)):
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.enable_mem_reuse = options.enable_mem_pattern = reuses
        yield onnxruntime.InferenceSession(model, options)


def answers(model, feeds):
    """The outputs of ONNX Runtime by name for each feed; None where it contradicts itself."""
    both = list(peers(model))
    names = [out.name for out in both[0].get_outputs()]
    for one in feeds:
        first, *others = (peer.run(names, one) for peer in (*both, both[1]))
        same = all(
            a.tobytes() == b.tobytes() for x in others for a, b in zip(first, x, strict=True)
        )
        yield dict(zip(names, first, strict=True)) if same else None


FOUND = (45, 102, 915, 1050, 1070, 2037, 2125, 3420)
"""Seeds that found faults which are mended."""
NATIVE = (3, 8, 33, 50, 57)
"""Seeds with native turns."""


@pytest.mark.parametrize("seed", sweep((*range(2200), 3420), always=(*FOUND, *range(0, 2200, 55))))
def test_nested_control_flow_equals_onnx_runtime(seed, tmp_path):
    print("seed", seed)
    made = nested(seed)
    content = made.model.SerializeToString()
    source = content
    if seed % 2:
        source = tmp_path / "model.onnx"
        source.write_bytes(content)
    wanted = list(answers(content, made.feeds))
    assert None not in wanted
    for mode, how in (WAYS[seed % 7], WAYS[seed // 7 % 7]):
        with Session(source, mode=mode, execution_options=how) as session:
            for feeds, right in zip(made.feeds, wanted, strict=True):
                found = session.run(feeds)
                for name, array in right.items():
                    assert found[name].dtype == array.dtype
                    np.testing.assert_array_equal(found[name], array, strict=True)


def results(model, feeds, threads):
    """The results of each feed on the cpu."""
    with Session(model, devices=["cpu"], threads=threads) as session:
        return [session.run(one) for one in feeds]


@pytest.mark.parametrize("seed", sweep(range(60), always=NATIVE))
def test_native_turns_have_the_bits_of_driven_ones(seed, monkeypatch):
    """Floats round here: turns that fuse or reorder arithmetic have other bits."""
    print("seed", seed)
    made, rng = nested(seed), np.random.default_rng(seed)
    model = made.model.SerializeToString()
    for feeds in made.feeds:
        feeds |= {
            name: rng.standard_normal(array.shape).astype(np.float32)
            for name, array in feeds.items()
            if array.dtype == np.float32
        }
    native = [results(model, made.feeds, threads) for threads in (1, 2)]
    monkeypatch.setattr("trireme.runtime.control.repeat.native_turns", lambda *_: None)
    driven = results(model, made.feeds, 1)
    for found in native:
        for one, other in zip(found, driven, strict=True):
            for name, array in one.items():
                assert array.tobytes() == other[name].tobytes()


@pytest.mark.parametrize("seed", sweep(range(120), always=range(0, 120, 8)))
def test_several_devices_equal_onnx_runtime(seed):
    print("seed", seed)
    made = nested(seed)
    model = made.model.SerializeToString()
    devices = (["cpu", "opencl"], ["npu", "cpu"])[seed // 8 % 2]
    how = ExecutionOptions(execution=("sunk", "interactive")[seed // 16 % 2])
    with Session(model, devices=devices, execution_options=how) as session:
        for feeds, right in zip(made.feeds, answers(model, made.feeds), strict=True):
            found = session.run(feeds)
            for name, array in right.items():
                np.testing.assert_array_equal(found[name], array, strict=True)


def with_dead_copies(graph, copies=2):
    """The graph behind copies of all its nodes, which read each other and which nothing reads."""
    values, nodes = dict(graph.values), []
    for _ in range(copies):
        new = {}
        for node in graph.nodes:
            for out in node.outputs:
                new[out] = len(values)
                values[new[out]] = replace(graph.values[out], id=new[out], name="")
            ins, outs = (tuple(new.get(v, v) for v in part) for part in (node.inputs, node.outputs))
            nodes.append(replace(node, id=len(nodes), inputs=ins, outputs=outs))
    nodes += [replace(node, id=len(nodes) + k) for k, node in enumerate(graph.nodes)]
    return check(replace(graph, nodes=tuple(nodes), values=values))


@pytest.mark.parametrize("seed", sweep(range(60), always=range(0, 60, 10)))
def test_each_pass_alone_keeps_what_nested_control_flow_gives(seed):
    """Alone, a pass meets dead nodes and equal ones that others would have removed."""
    print("seed", seed)
    made = nested(seed)
    graph = with_dead_copies(convert(made.model.SerializeToString()))
    feeds = {v.id: np.asarray(made.feeds[0][v.name]) for v in graph.input_values()}
    wanted = interpret(graph, feeds)
    for name in PASSES:
        other = optimise(graph, passes=[name])
        given = {v.id: feeds[w] for v, w in zip(other.input_values(), graph.inputs, strict=True)}
        found = interpret(other, given)
        for mine, old in zip(other.outputs, graph.outputs, strict=True):
            np.testing.assert_array_equal(found[mine], wanted[old], strict=True)


NO_TURN = """
none (int64 n, float[k,3] x) => (float[m,k2,3] all, float[k3,m2] side)
{
    last, all = Loop (n, , x) <body = turn
        (int64 i, bool going, float[a,3] s) => (bool more, float[b,3] t, float[c,3] row)
        { more = Identity(going)  t = Neg(s)  row = Abs(t) }
    >
    sums = ReduceSum <keepdims = 0> (all, first)
    state, side = Scan (sums, all) <num_scan_inputs = 1, scan_output_axes = [1], body = step
        (float[d,3] s, float[e,3] x) => (float[f,3] t, float[g] row)
        { t = Add(s, x)  row = ReduceSum <keepdims = 0> (t, last_axis) }
    >
}
"""


@pytest.mark.parametrize(
    "how", [ExecutionOptions(), AS_GIVEN, DYNAMIC], ids=["", "given", "dynamic"]
)
def test_rows_of_no_turn_have_the_other_sizes_of_a_turn(how):
    constants = """
        first = Constant <value = int64[1] {0}> ()
        last_axis = Constant <value = int64[1] {1}> ()
    """
    model = parser.parse_model(HEAD + NO_TURN.replace("{", "{" + constants, 1)).SerializeToString()
    x = np.ones((2, 3), np.float32)
    graph = convert(model)
    with Session(model, execution_options=how) as session:
        for turns in (0, 2, 0):
            feeds = {"n": np.array(turns), "x": x}
            by_id = {v.id: np.asarray(feeds[v.name]) for v in graph.input_values()}
            for found in (
                list(session.run(feeds).values()),
                [interpret(graph, by_id)[value] for value in graph.outputs],
            ):
                assert [one.shape for one in found] == [(turns, 2, 3), (2, turns)]
