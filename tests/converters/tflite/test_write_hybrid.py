"""Products on rows that are rounded in the run, written as LiteRT's hybrid operators."""

from collections import Counter

import numpy as np
import pytest
import tflite
from float_graphs import conv_net, samples_of
from litert import litert_run, random_inputs
from tflite_builder import T, constant, one_op

import trireme
from trireme.converters.tflite.walk import convert
from trireme.converters.tflite.write import export
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference

SEED = 16
CODES = {code: name for name, code in vars(tflite.BuiltinOperator).items() if name[0] != "_"}
HYBRID = {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"}


def operators(data):
    """The (name, version, dtype of input 1) of the operators of a file, counted."""
    model = tflite.Model.GetRootAs(data, 0)
    graph = model.Subgraphs(0)
    found = Counter()
    for at in range(graph.OperatorsLength()):
        operator = graph.Operators(at)
        code = model.OperatorCodes(operator.OpcodeIndex())
        if (name := CODES[code.BuiltinCode()]) in HYBRID:
            weights = graph.Tensors(operator.Inputs(1)).Type()
            found[name, code.Version(), weights == tflite.TensorType.INT8] += 1
    return found


def rows_net():
    """Two products of one value, with and without a bias, gelu after one, a residual after both."""
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("rows")
    x = b.input("x", TensorType((1, 5, 24), "float32"))
    weights = [b.constant("w", rng.standard_normal((24, 24)).astype(np.float32)) for _ in range(2)]
    bias = b.constant("b", rng.standard_normal(24).astype(np.float32))
    gate = b.add("fully_connected", x, weights[0], bias, activation="gelu")
    return b.finish(b.add("add", x, b.add("mul", gate, b.add("fully_connected", x, weights[1]))))


CASES = {
    "rows": (rows_net(), {("FULLY_CONNECTED", 12, True): 2}),
    "images": (
        conv_net(SEED),
        {
            ("CONV_2D", 5, True): 3,
            ("DEPTHWISE_CONV_2D", 6, True): 1,
            ("FULLY_CONNECTED", 12, True): 1,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_scheme_dynamic_is_written_as_hybrid_operators(name):
    net, wanted = CASES[name]
    made = trireme.quantize(net, scheme="dynamic")
    data = export(made)
    assert operators(data) == wanted
    feeds = {key: array[0] for key, array in samples_of(net, 1, SEED).items()}
    (right,) = run_reference(made, feeds).values()
    (found,) = litert_run(data, feeds).values()
    np.testing.assert_allclose(found, right, rtol=0, atol=2e-6 * np.abs(right).max())
    (again,) = run_reference(convert(data), feeds).values()
    np.testing.assert_allclose(again, right, rtol=0, atol=2e-6 * np.abs(right).max())


def one_product(code, asymmetric, channels):
    """A file of one hybrid operator of LiteRT, as its converter makes it."""
    rng = np.random.default_rng(SEED)
    scales = rng.uniform(0.005, 0.02, channels).tolist()
    shape = (5, 12) if code == "FULLY_CONNECTED" else (5, 3, 3, 6)
    weights = constant(rng.integers(-127, 128, shape).astype(np.int8), *scales, axis=0)
    bias = constant(rng.standard_normal(5).astype(np.float32))
    if code == "FULLY_CONNECTED":
        options = {"AsymmetricQuantizeInputs": asymmetric}
        ends = [T((3, 12)), weights, bias], [T((3, 5))], "FullyConnectedOptions"
        return one_op(code, *ends, **options)
    options = {"StrideH": 1, "StrideW": 1, "Padding": 0, "FusedActivationFunction": 1}
    ends = [T((2, 9, 11, 6)), weights, bias], [T((2, 9, 11, 5))], "Conv2DOptions"
    return one_op(code, *ends, **options)


@pytest.mark.parametrize(
    ("code", "asymmetric", "channels"),
    [
        ("FULLY_CONNECTED", False, 1),
        ("FULLY_CONNECTED", False, 5),
        ("FULLY_CONNECTED", True, 1),
        ("FULLY_CONNECTED", True, 5),
        ("CONV_2D", False, 1),
        ("CONV_2D", True, 5),
    ],
)
def test_a_hybrid_operator_is_written_back_with_its_bits(code, asymmetric, channels):
    data = one_product(code, asymmetric, channels)
    written = export(convert(data))
    ((name, _, is_int8),) = operators(written)
    assert (name, is_int8) == (code, True)
    feeds = random_inputs(data, SEED)
    (right,) = litert_run(data, feeds).values()
    (found,) = litert_run(written, feeds).values()
    np.testing.assert_array_equal(found, right)
