"""Type inference: open dimensions stay open where they must, and errors say what is wrong."""

import numpy as np
import pytest
from op_samples import by_op, sample_graph

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import ANY_RANK, TensorType
from trireme.ir.op import call_of, get_op
from trireme.support.errors import ShapeError

PLAIN = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
POOL = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def node_types(op, *operands, outputs=1, **attrs):
    """The types a node makes of operands: shapes are fed, arrays are constants, None is absent."""
    builder, inputs = GraphBuilder("infer"), []
    for number, operand in enumerate(operands):
        if operand is None:
            inputs.append(None)
        elif isinstance(operand, np.ndarray):
            inputs.append(builder.constant(f"c{number}", operand))
        else:
            shape, dtype = operand if len(operand) == 2 and operand[1] == "int64" else (operand, 0)
            type_ = TensorType(tuple(shape), dtype or "float32")
            inputs.append(builder.input(f"x{number}", type_))
    made = builder.add_node(op, inputs, attrs, outputs=outputs, source="test:Node_1")
    return [builder.type(value) for value in made]


def shape_of(op, *operands, **attrs):
    return node_types(op, *operands, **attrs)[0].shape


def ints(*values):
    return np.array(values, np.int64)


W = np.zeros((8, 3, 3, 5), np.float32)
OPEN = [
    ("conv", (("N", "H", 9, 5), W), PLAIN, ("N", "H", 9, 8)),
    ("conv", (("N", "H", 9, 5), W), {**PLAIN, "strides": (2, 2)}, ("N", "((H-1)//2)+1", 5, 8)),
    ("max_pool", (("N", "H", 8, 5),), POOL, ("N", "((H)//2)", 4, 5)),
    ("add", (("N", 3), (1, 3)), {}, ("N", 3)),
    ("add", (("N", 1), ("N", 3)), {}, ("N", 3)),
    ("add", (("N", 3), ("M", 3)), {}, ("?", 3)),
    ("add", (("N", 3), (7, 3)), {}, (7, 3)),
    ("matmul", (("N", "S", 4), (4, 6)), {}, ("N", "S", 6)),
    ("fully_connected", (("N", 4), (6, 4)), {}, ("N", 6)),
    ("reshape", (("N", 3, 4), ints(0, 12)), {}, ("N", 12)),
    ("reshape", (("N", 3, 4), ints(-1, 12)), {}, ("N", 12)),
    ("reshape", (("N", 3, 4), ints(-1, 6)), {}, ("2*N", 6)),
    ("reshape", (("N", "M", 4), ints(0, -1)), {}, ("N", "4*M")),
    ("reshape", (("N", 3, 4), ((2,), "int64")), {}, ("?", "?")),
    ("transpose", (("N", 3, "H"),), {"perm": (2, 0, 1)}, ("H", "N", 3)),
    ("concat", (("N", 3), ("N", 4)), {"axis": 1}, ("N", 7)),
    ("concat", (("N", 3), ("M", 3)), {"axis": 0}, ("M+N", 3)),
    ("slice", (("N", 9), ints(0, 2), ints(2**31 - 1, 5)), {}, ("N", 3)),
    ("slice", (("N", 9), ints(1), ints(4)), {}, ("max(-min(1,N)+min(4,N),0)", 9)),
    ("pad", (("N", 9), ints(0, 1, 0, 2)), {}, ("N", 12)),
    ("squeeze", (("N", 1, 3), ints(1)), {}, ("N", 3)),
    ("squeeze", (("N", 1, 3),), {}, ANY_RANK),
    ("unsqueeze", (("N", 3), ints(0, -1)), {}, (1, "N", 3, 1)),
    ("flatten", (("N", 3, 4),), {}, ("N", 12)),
    ("expand", (("N", 1), ints(1, 5)), {}, ("N", 5)),
    ("tile", (("N", 3), ints(1, 2)), {}, ("N", 6)),
    ("reduce_mean", (("N", "H", 3), ints(1)), {}, ("N", 1, 3)),
    ("reduce_mean", (("N", "H", 3), ints(1)), {"keepdims": 0}, ("N", 3)),
    ("gather", (("V", 8), (("N", "S"), "int64")), {}, ("N", "S", 8)),
    ("resize", (("N", 5, 6, 3), None, None, ints(10, 12)), {"axes": (1, 2)}, ("N", 10, 12, 3)),
    ("resize", (("N", 5, 6, 3), None, np.array([1, 2, 2, 1], np.float32)), {}, ("N", 10, 12, 3)),
    ("top_k", (("N", 9), ints(3)), {}, ("N", 3)),
    ("non_zero", (("N", 9),), {}, (2, "?")),
    ("einsum", (("N", 3, 4), ("N", 4, 5)), {"equation": "bij,bjk->bik"}, ("N", 3, 5)),
    ("depth_to_space", (("N", 4, "W", 8),), {"blocksize": 2}, ("N", 8, "2*W", 2)),
]


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "wanted"),
    OPEN,
    ids=[f"{i}-{case[0]}" for i, case in enumerate(OPEN)],
)
def test_open_dimensions(op, operands, attrs, wanted):
    assert shape_of(op, *operands, **attrs) == wanted


WRONG = [
    (
        "conv",
        ((1, 9, 9, 32), np.zeros((64, 3, 3, 16), np.float32)),
        PLAIN,
        "input's channel count is 32, expected 16 (weight 16 x groups 1)",
    ),
    (
        "conv",
        ((1, 2, 2, 5), W),
        {**PLAIN, "pads": (0, 0, 0, 0)},
        "a window of 3 does not fit into 2 elements and pads 0+0",
    ),
    ("conv", ((1, 9, 9, 5), W), {**PLAIN, "strides": (1,)}, "strides has 1 entries, expected 2"),
    ("conv", ((1, 9, 9, 5), W), {**PLAIN, "strides": (0, 1)}, "has an entry below 1"),
    ("conv", ((1, 9, 9, 5), W, (7,)), PLAIN, "the bias' length is 7, expected 8"),
    ("fully_connected", ((1, 4), (6, 5)), {}, "last dimension is 4, expected 5"),
    ("matmul", ((2, 3), (4, 5)), {}, "b's row count is 4, expected 3"),
    ("add", ((2, 3), (4, 3)), {}, "shapes [2,3] and [4,3] do not broadcast"),
    ("reshape", ((2, 3), ints(4, -1)), {}, "6 elements do not reshape to (4, -1)"),
    ("transpose", ((2, 3),), {"perm": (0, 0)}, "names one axis twice"),
    ("concat", ((2, 3), (2, 4)), {"axis": 0}, "input 1's dimension 1 is 4, expected 3"),
    ("squeeze", ((2, 3), ints(0)), {}, "dimension 0 is 2, expected 1"),
    ("softmax", ((2, 3),), {"axis": 2}, "axis 2 is outside rank 2"),
    ("split", ((2, 9), ints(4, 4)), {"axis": 1}, "split (4, 4) does not add up to 9"),
    ("pad", ((2, 9), ints(0, 1)), {}, "pads has 2 entries, expected 4"),
    ("layer_normalization", ((2, 9), (8,)), {}, "dimension -1 of scale is 8, expected 9"),
    ("depth_to_space", ((1, 4, 4, 6),), {"blocksize": 2}, "channel count 6 does not divide by 4"),
    ("not", ((2, 3),), {}, "x is float32, expected bool"),
    ("top_k", ((2, 3), ints(4)), {}, "k is 4, the axis has 3 elements"),
]


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "words"),
    WRONG,
    ids=[f"{i}-{case[0]}" for i, case in enumerate(WRONG)],
)
def test_errors_say_what_is_wrong(op, operands, attrs, words):
    with pytest.raises(ShapeError) as caught:
        shape_of(op, *operands, **attrs)
    assert words in caught.value.summary
    assert "test:Node_1" in caught.value.summary


def test_a_conv_error_shows_the_facts_and_a_fix():
    with pytest.raises(ShapeError) as caught:
        shape_of("conv", (1, 9, 9, 32), np.zeros((64, 16, 3, 3), np.float32), **PLAIN)
    text = str(caught.value)
    assert "float32[1,9,9,32]" in text
    assert "float32[64,16,3,3]" in text
    assert "fix: weights are OHWI for layout NHWC" in text


@pytest.mark.parametrize(("op", "samples"), list(by_op()))
def test_costs_are_whole_numbers(op, samples):
    for sample, name in samples:
        graph, _ = sample_graph(op, sample)
        for node in graph.nodes:
            flops = get_op(node.op).flops(call_of(graph, node))
            assert isinstance(flops, int), name
            assert flops >= 0, name
