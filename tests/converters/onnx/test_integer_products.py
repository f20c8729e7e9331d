"""MatMulInteger, ConvInteger and DynamicQuantizeLinear, exactly as ONNX Runtime computes them."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_single import Single, answers_of, assert_single
from ort_integers import signed_bits
from ort_integers import whole as drawn

from trireme import Session
from trireme.converters.onnx import convert
from trireme.devices.cpu.compile.program import REFERENCE

SEED = 20261127
RNG = np.random.default_rng(SEED)


def whole(dtype, *shape):
    return drawn(RNG, dtype, *shape)


def product(a, b, *zeros, constants=(1, 3)):
    inputs = (a, b, *map(np.asarray, zeros))
    fixed = frozenset(n for n in constants if n < len(inputs))
    return Single("MatMulInteger", inputs, {}, fixed, domain="")


U8, I8 = np.uint8, np.int8
LEAST = -(2 ** (signed_bits() - 1))
ENDS = np.full((2, 3000), 255, U8), np.full((3000, 3), LEAST, I8)
PRODUCTS = {
    "unsigned and signed": product(whole(U8, 3, 40), whole(I8, 40, 5)),
    "zero points": product(whole(U8, 3, 40), whole(I8, 40, 5), U8(7), I8(-3)),
    "zero points of columns": product(whole(U8, 3, 40), whole(U8, 40, 5), U8(250), whole(U8, 5)),
    "signed": product(whole(I8, 3, 40), whole(I8, 40, 5), I8(-128)),
    "three axes": product(whole(U8, 2, 3, 40), whole(I8, 40, 5), U8(9)),
    "batches": product(whole(U8, 2, 3, 40), whole(I8, 2, 40, 5), U8(9)),
    "a sum that float32 holds in six parts": product(*ENDS),
    "a depth that no sixteen parts hold": product(
        np.full((1, 9000), 255, U8), np.full((9000, 1), LEAST, I8)
    ),
    "weights are no constants": product(whole(U8, 3, 40), whole(I8, 40, 5), U8(7), constants=()),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_exact(name):
    assert_single(PRODUCTS[name])


@pytest.mark.parametrize("name", [name for name in PRODUCTS if "no" not in name.split()])
def test_products_with_constant_weights_have_kernels_that_are_exact(name):
    case = PRODUCTS[name]
    (right,) = answers_of(case.model(), case.feeds).values()
    with Session(case.model(), devices=["cpu"], threads=2) as session:
        (found,) = session.run(case.feeds).values()
        assert REFERENCE not in str(session.profile(case.feeds))
    np.testing.assert_array_equal(found, right)


def conv(x, w, *zeros, **attrs):
    inputs = (x, w, *map(np.asarray, zeros))
    fixed = frozenset(n for n in (1, 3) if n < len(inputs))
    return Single("ConvInteger", inputs, attrs, fixed, domain="")


PIXELS = whole(U8, 2, 4, 9, 8)
CONVS = {
    "3x3": conv(PIXELS, whole(U8, 5, 4, 3, 3)),
    "pads and zero points": conv(
        PIXELS, whole(U8, 5, 4, 3, 3), U8(99), U8(120), pads=[1, 0, 2, 1], strides=[2, 1]
    ),
    "dilations": conv(PIXELS, whole(U8, 5, 4, 3, 2), U8(3), dilations=[2, 3], strides=[1, 2]),
    "1x1": conv(PIXELS, whole(U8, 5, 4, 1, 1), U8(3)),
    "1x1, strides": conv(PIXELS, whole(U8, 5, 4, 1, 1), U8(3), strides=[2, 3]),
    "same": conv(PIXELS, whole(U8, 5, 4, 3, 3), U8(3), auto_pad="SAME_UPPER", strides=[2, 2]),
    "depthwise": conv(PIXELS, whole(U8, 4, 1, 3, 3), U8(3), U8(7), group=4, pads=[1, 1, 1, 1]),
    "groups": conv(PIXELS, whole(U8, 6, 2, 3, 3), U8(3), group=2),
    "one axis": conv(whole(U8, 2, 3, 30), whole(U8, 4, 3, 5), U8(3), strides=[3], pads=[2, 1]),
    "a deep sum": conv(np.full((1, 300, 5, 5), 255, U8), np.full((2, 300, 3, 3), 255, U8)),
}


@pytest.mark.parametrize("name", CONVS)
def test_convolutions_are_exact(name):
    assert_single(CONVS[name])


@pytest.mark.parametrize("name", CONVS)
def test_convolutions_have_kernels_that_are_exact(name):
    case = CONVS[name]
    (right,) = answers_of(case.model(), case.feeds).values()
    with Session(case.model(), devices=["cpu"], threads=2) as session:
        (found,) = session.run(case.feeds).values()
        assert REFERENCE not in str(session.profile(case.feeds))
    np.testing.assert_array_equal(found, right)


LARGE = RNG.standard_normal((7, 50)).astype(np.float32)
INPUTS = {
    "both signs": LARGE,
    "above 0": np.abs(LARGE) + 1,
    "below 0": -np.abs(LARGE) - 1,
    "one number": np.full((3, 4), 2.5, np.float32),
    "zeros": np.zeros((3, 4), np.float32),
    "ties": np.arange(-64, 192, dtype=np.float32) / 2,
    "a scalar": np.array(3, np.float32),
}


@pytest.mark.parametrize("name", INPUTS)
def test_dynamic_quantize_linear(name):
    case = Single("DynamicQuantizeLinear", (INPUTS[name],), outputs="111", domain="")
    wanted = answers_of(case.model(), case.feeds)
    assert_single(case)
    with Session(case.model(), devices=["cpu"], threads=1) as session:
        found = session.run(case.feeds)
    for output, right in wanted.items():
        np.testing.assert_array_equal(found[output], right, err_msg=output)


def test_an_empty_input_has_the_op_of_its_own():
    case = Single("DynamicQuantizeLinear", (LARGE[:0],), outputs="111", domain="")
    assert [node.op for node in convert(case.model()).nodes] == ["dynamic_quantize_linear"]


def quantised_layer(weights, zero, scales, form):
    """A layer as quantize_dynamic writes it, or as ONNX Runtime saves it."""
    names, tensors = ["x", "w", "scale", "zero", "bias"], {}
    tensors["w"], tensors["scale"] = weights, scales.astype(np.float32)
    tensors["zero"] = np.asarray(zero, weights.dtype)
    tensors["bias"] = RNG.standard_normal(weights.shape[1]).astype(np.float32)
    node = helper.make_node
    if form == "DynamicQuantizeMatMul":
        nodes = [node(form, names, ["y"], domain="com.microsoft")]
    else:
        nodes = [
            node("DynamicQuantizeLinear", ["x"], ["q", "step", "point"]),
            node("MatMulInteger", ["q", "w", "point", "zero"], ["sum"]),
            node("Cast", ["sum"], ["real"], to=TensorProto.FLOAT),
            node("Mul", ["step", "scale"], ["factor"]),
            node("Mul", ["real", "factor"], ["scaled"]),
            node("Add", ["scaled", "bias"], ["y"]),
        ]
    kept = [numpy_helper.from_array(data, name) for name, data in tensors.items()]
    shapes = (("x", [3, 4, weights.shape[0]]), ("y", [3, 4, weights.shape[1]]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "layer", [x], [y], kept)
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    return model.SerializeToString()


LAYERS = {
    "int8": (whole(I8, 96, 40), 0, np.float32(0.01)),
    "uint8 with a zero point": (whole(U8, 96, 40), 119, np.float32(0.01)),
    "a scale for each column": (whole(I8, 96, 40), 0, RNG.uniform(0.001, 0.1, 40)),
    "a sum in parts": (whole(I8, 3000, 9), 0, np.float32(0.01)),
    "uint8, a sum in parts": (whole(U8, 3000, 9), 1, np.float32(0.01)),
}


@pytest.mark.parametrize("form", ["MatMulInteger", "DynamicQuantizeMatMul"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_on_a_dynamic_range_is_a_product_of_bytes(name, form):
    model = quantised_layer(*LAYERS[name], form)
    feeds = {"x": RNG.standard_normal((3, 4, len(LAYERS[name][0]))).astype(np.float32)}
    (right,) = answers_of(model, feeds).values()
    with Session(model, devices=["cpu"], threads=2) as session:
        (found,) = session.run(feeds).values()
        kernels = {kernel.split("_")[0] for kernel in session.kernels()}
    assert kernels - {"range"} == {"gemm", "levels"}, kernels
    np.testing.assert_allclose(found, right, rtol=2e-6, atol=1e-5)


def opened(case, *axes):
    """The model with symbols for these axes of the images."""
    model = onnx.ModelProto.FromString(case.model())
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for axis in axes:
        dims[axis].dim_param = f"size{axis}"
    return model.SerializeToString()


@pytest.mark.parametrize("name", [name for name in CONVS if name != "one axis"])
def test_convolutions_of_open_images_have_kernels_that_are_exact(name):
    case = CONVS[name]
    axes = (0, 3) if name == "same" else (0, 2, 3)
    if name == "same":
        case = replace(case, attrs={**case.attrs, "strides": [2, 1]})
    with Session(opened(case, *axes), devices=["cpu"], threads=2) as session:
        for batch, height, width in ((1, 9, 40), (3, 33, 8), (2, 12, 17)):
            sizes = (batch, case.inputs[0].shape[1], 9 if name == "same" else height, width)
            one = replace(case, inputs=(whole(U8, *sizes), *case.inputs[1:]))
            (right,) = answers_of(one.model(), one.feeds).values()
            (found,) = session.run(one.feeds).values()
            np.testing.assert_array_equal(found, right, err_msg=f"{SEED} {sizes}")
            assert REFERENCE not in str(session.profile(one.feeds))
        assert [stage.tier for stage in session.stages] == ["polymorphic"]
