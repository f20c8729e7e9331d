"""Optional inputs that are left out while a later one is given: what comes after a hole keeps its
place, in references, in passes and on every device.
"""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from forced import pinned_where_supported
from onnx import TensorProto, helper
from op_samples import assert_close, op_samples, sample_graph

from trireme.converters.onnx.functions import input_types
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.ir.op import all_ops
from trireme.runtime.session.session import Session
from trireme.support.errors import TriremeError

SEED = 31


def optional(op):
    """The positions of the inputs that may be left out."""
    return [k for k, name in enumerate(op.inputs.split()) if name.endswith("?")]


def has_hole(sample):
    given = [array is not None for array in sample.inputs]
    return False in given and True in given[given.index(False) :]


def with_holes():
    """Yield (op, sample, id) for samples with inputs dropped, so that they have a hole.

    Samples that come with a hole are tested with all others.
    """
    for op, sample, name in op_samples(lambda op: optional(op)):
        for position in optional(op):
            kept = [None if k == position else a for k, a in enumerate(sample.inputs)]
            holed = replace(sample, inputs=tuple(kept))
            if not has_hole(sample) and has_hole(holed) and is_sound(op, holed):
                yield op, holed, f"{name}-without-{position}"


def is_sound(op, sample):
    """Whether the op takes the sample, and its result has a shape that is known before it runs."""
    try:
        graph, _ = sample_graph(op, sample)
    except TriremeError:
        return False
    return all(value.type.is_static for value in graph.output_values())


CASES = {name: (op, sample) for op, sample, name in with_holes()}
UNPLANNED = {"loop", "non_max_suppression"}
"""Control flow, and a result whose shape only a run tells."""


def test_required_inputs_come_first():
    """So the first entries of `Node.used` are the required inputs."""
    for op in all_ops():
        marks = [name[-1] in "?*" for name in op.inputs.split()]
        assert marks == sorted(marks), f"{op.name}: {op.inputs}"


def test_every_op_with_two_optional_inputs_has_a_case():
    several = {op.name for op in all_ops() if len(optional(op)) > 1}
    own = {op.name for op, sample, _ in op_samples() if has_hole(sample)}
    assert several - own - {op.name for op, _ in CASES.values()} == UNPLANNED


@pytest.mark.parametrize("name", CASES)
def test_a_hole_on_every_device(devices, name):
    op, sample = CASES[name]
    graph, feeds = sample_graph(op, sample)
    wanted = interpret(graph, feeds)
    named = {graph.values[value].name: array for value, array in feeds.items()}
    for device in devices.values():
        pinned = pinned_where_supported(graph, device)
        if pinned.nodes[0].pin is None:
            continue
        with Session(pinned, devices=list({device, devices["cpu"]})) as session:
            found = session.run(named)
        for value in graph.outputs:
            what = f"{name} on {device.spec.name}"
            assert_close(found[graph.values[value].name], wanted[value], max(op.rtol, 1e-6), what)


def test_function_bodies_see_every_input_at_its_place():
    """ONNX makes the body of some ops for the types of the inputs, by position."""
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType((2,), "float16"))
    y = builder.input("y", TensorType((), "int64"))
    found = [onnx.TypeProto.FromString(data) for data in input_types(builder, [x, None, y])]
    elements = [one.tensor_type.elem_type for one in found]
    assert elements == [TensorProto.FLOAT16, TensorProto.UNDEFINED, TensorProto.INT64]


def qdq_resize(shape, scales, sizes, **attrs):
    """The bytes of a model: quantise, resize between Q and DQ, dequantise."""
    tail = {"scales": np.array(scales, np.float32)} if scales else {"sizes": np.array(sizes)}
    return qdq("Resize", shape, ["", "scales"] if scales else ["", "", "sizes"], tail, attrs)


def qdq(op, shape, more, values, attrs):
    """The bytes of a model: quantise, an op between Q and DQ with more inputs, dequantise.

    values: of the further inputs, by name
    """
    numbers = {"scale": np.float32(0.05), "zero": np.int8(-3)}
    inits = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in (numbers | values).items()]
    quant = ["scale", "zero"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *quant], ["q"]),
        helper.make_node("DequantizeLinear", ["q", *quant], ["d"]),
        helper.make_node(op, ["d", *more], ["r"], **attrs),
        helper.make_node("QuantizeLinear", ["r", *quant], ["s"]),
        helper.make_node("DequantizeLinear", ["s", *quant], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))
    graph = helper.make_graph(nodes, "qdq", [x], [y], inits)
    imports = [helper.make_opsetid("", 19)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()


NCHW, NHWC = (1, 3, 5, 7), (1, 5, 7, 3)
TRANSFORMS = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
RESIZES = [
    *((NCHW, None, (1, 3, 11, 9), {"mode": "linear", "how": how}) for how in TRANSFORMS),
    *((NHWC, None, (1, 11, 9, 3), {"mode": "linear", "how": how}) for how in TRANSFORMS[:3]),
    *((NCHW, None, (1, 3, 11, 9), {"mode": "cubic", "how": how}) for how in TRANSFORMS),
    (NCHW, (1, 1, 1.5, 2), None, {"mode": "linear", "how": "half_pixel"}),
    (NCHW, (1, 1, 1.5, 1.4), None, {"mode": "linear", "how": "asymmetric"}),
    (NCHW, (1, 1, 2, 2), None, {"mode": "cubic", "how": "half_pixel"}),
    (NCHW, None, (1, 3, 3, 4), {"mode": "linear", "how": "half_pixel", "antialias": 1}),
    (NCHW, None, (1, 3, 11, 9), {"mode": "nearest", "how": "half_pixel"}),
    ((2, 6), None, (2, 9), {"mode": "linear", "how": "half_pixel"}),
]


@pytest.mark.parametrize("case", range(len(RESIZES)))
def test_a_resize_between_q_and_dq_equals_onnx_runtime(case):
    shape, scales, sizes, attrs = RESIZES[case]
    attrs = dict(attrs)
    attrs["coordinate_transformation_mode"] = attrs.pop("how")
    model = qdq_resize(shape, scales, sizes, **attrs)
    print("seed", SEED)
    x = np.random.default_rng(SEED).uniform(-5, 5, shape).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
    with Session(model) as session:
        (found,) = session.run({"x": x}).values()
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=0.0501)  # one unit: weights are in 1/1024
    assert np.mean(found != wanted) < 0.2


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("axes", [None, (3, 1)])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_a_pad_between_q_and_dq_equals_onnx_runtime(mode, axes, fill):
    """A fill is the zero point where none is given, and of no account where edges are repeated."""
    pads = (1, 2, 0, 1) if axes else (0, 1, 0, 2, 0, 0, 1, 1)
    values = {"pads": np.array(pads)} | ({"fill": np.float32(0.5)} if fill else {})
    values |= {"axes": np.array(axes)} if axes else {}
    more = ["pads", "fill" if fill else "", *(["axes"] if axes else [])]
    model = qdq("Pad", (2, 4, 3, 5), more, values, {"mode": mode})
    print("seed", SEED)
    x = np.random.default_rng(SEED).uniform(-5, 5, (2, 4, 3, 5)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
    with Session(model) as session:
        (found,) = session.run({"x": x}).values()
        padded = [node.outputs[0] for node in session.graph.nodes if node.op == "pad"]
        assert [session.graph.type(value).dtype for value in padded] == ["int8"]
    np.testing.assert_array_equal(found, wanted)
