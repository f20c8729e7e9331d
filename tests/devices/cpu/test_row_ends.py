"""Windows in rows of every length: ONNX Runtime says what is right at either end of a row."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from sweep import sweep

import trireme
from trireme.devices.cpu.codegen.target import ISAS
from trireme.devices.cpu.runtime.window_blocks import window_words

WIDTHS = (*range(1, 24), 29, 33, 64)
CASES = {
    "3": dict(kernel=3, pads=(1, 1)),
    "3 valid": dict(kernel=3, pads=(0, 0)),
    "3 before": dict(kernel=3, pads=(2, 0)),
    "3 after": dict(kernel=3, pads=(0, 2)),
    "3 by 2": dict(kernel=3, pads=(1, 1), stride=2),
    "3 by 2 after": dict(kernel=3, pads=(0, 1), stride=2),
    "3 apart": dict(kernel=3, pads=(2, 2), dilation=2),
    "3 by 3": dict(kernel=3, pads=(1, 1), stride=3),
    "5": dict(kernel=5, pads=(2, 2)),
    "5 by 2": dict(kernel=5, pads=(2, 2), stride=2),
    "5 wide": dict(kernel=5, pads=(4, 4)),
    "7": dict(kernel=7, pads=(3, 3)),
    "7 by 2": dict(kernel=7, pads=(3, 2), stride=2),
    "9": dict(kernel=9, pads=(4, 4)),
    "11": dict(kernel=11, pads=(5, 5)),
}


def model(op, kernel, pads, stride=1, dilation=1, channels=20):
    """One window over images [n, channels or 3, h, w]."""
    attrs = {"kernel_shape": (3, kernel), "strides": (1, stride), "dilations": (1, dilation)}
    attrs["pads"] = (1, pads[0], 1, pads[1])
    rng, inputs, weights = np.random.default_rng(7), ["x"], []
    if op == "depthwise":
        attrs["group"], shape = channels, (channels, 1, 3, kernel)
    elif op == "direct":
        channels, shape = 3, (20, 3, 3, kernel)
    if op in ("depthwise", "direct"):
        w = rng.standard_normal(shape).astype(np.float32)
        weights = [numpy_helper.from_array(w, "w")]
        inputs.append("w")
    name = {"max": "MaxPool", "average": "AveragePool"}.get(op, "Conv")
    node = helper.make_node(name, inputs, ["y"], **attrs)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", ["n", channels, "h", "w"]), ("y", ["n", "c", "i", "j"]))
    ]
    graph = helper.make_graph([node], "window", ends[:1], ends[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.checker.check_model(made)
    return made.SerializeToString(), channels


OPS = ("depthwise", "direct", "max", "average")
PAIRS = [(case, op) for case in CASES for op in OPS]


def is_drawn(case, op):
    """Every second op of a case, the others of the next case."""
    return (list(CASES).index(case) + OPS.index(op)) % 2 == 0


@pytest.mark.parametrize(("case", "op"), sweep(PAIRS, is_drawn))
def test_rows_of_every_length_are_those_of_onnx_runtime(case, op):
    given = CASES[case]
    reach = (given["kernel"] - 1) * given.get("dilation", 1)
    if op in ("max", "average") and max(given["pads"]) >= given["kernel"]:
        pytest.skip("no pool of only pads")
    data, channels = model(op, **given)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    rng, ran = np.random.default_rng(11), 0
    with trireme.Session(data, threads=1) as session:
        for width in WIDTHS:
            if width + sum(given["pads"]) <= reach:
                continue
            x = rng.standard_normal((2, channels, 4, width)).astype(np.float32)
            (wanted,) = peer.run(None, {"x": x})
            made = session.run({"x": x})["y"]
            assert made.shape == wanted.shape
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=2e-5, err_msg=f"{width}")
            ran += 1
        assert session.stages[0].tier == "polymorphic"
    assert ran > 10


@pytest.mark.parametrize("channels", [300, 1000])
@pytest.mark.parametrize("op", ["depthwise", "max", "average"])
def test_blocks_of_channels_are_those_of_onnx_runtime(op, channels):
    data, _ = model(op, kernel=3, pads=(1, 1), channels=channels)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    rng, blocks = np.random.default_rng(13), set()
    with trireme.Session(data, threads=2) as session:
        for size in ((2, 1, 1), (1, 9, 7), (2, 7, 14), (1, 13, 25), (1, 5, 30), (1, 4, 90)):
            x = rng.standard_normal((size[0], channels, *size[1:])).astype(np.float32)
            (wanted,) = peer.run(None, {"x": x})
            made = session.run({"x": x})["y"]
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=2e-5, err_msg=f"{size}")
        assert session.stages[0].tier == "polymorphic"
    for isa in (ISAS["avx512"], ISAS["avx2"]):
        for width in (7, 14, 25, 30):
            given = isa.lanes, isa.l1_bytes, channels, 3, 40, width, 1e-4
            part, parts, block, chunks = window_words(*given)
            blocks.add(-(-channels // block))
            assert part * (parts - 1) < 40 <= part * parts
            assert block == channels or block % isa.lanes == 0
            assert chunks == parts * -(-channels // block)
    assert len(blocks) > 2


@pytest.mark.parametrize("columns", [7, 70, 130, 320])
def test_products_of_every_number_of_rows_are_those_of_onnx_runtime(columns):
    rng = np.random.default_rng(5)
    w = numpy_helper.from_array(rng.standard_normal((48, columns)).astype(np.float32), "w")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ("rows", size))
        for name, size in (("x", 48), ("y", columns))
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], [w])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    data = made.SerializeToString()
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    with trireme.Session(data, threads=1) as session:
        x = rng.standard_normal((70, 48)).astype(np.float32)
        whole = session.run({"x": x})["y"]
        for rows in range(1, 70):
            (wanted,) = peer.run(None, {"x": x[:rows]})
            result = session.run({"x": x[:rows]})["y"]
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4, err_msg=f"{rows}")
            assert (result == whole[:rows]).all(), f"{rows} rows have other bits than {len(x)}"
