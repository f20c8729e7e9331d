"""ONNX Runtime's fused norms, activations, products and quantised ops, against ONNX Runtime."""

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_single import Single, assert_single
from ort_integers import whole as drawn
from zoo import CHECKOUT

from trireme.converters.onnx import convert
from trireme.converters.onnx.microsoft import MICROSOFT_TABLE
from trireme.support.errors import ConvertError

SEED = 20261124
RNG = np.random.default_rng(SEED)
H = 24


def draw(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def skip(op, x, other, *rest, outputs="1001", **attrs):
    fixed = frozenset(range(2, 2 + len(rest)))
    return Single(op, (x, other, *rest), attrs, fixed, outputs)


X, OTHER, ROW = draw(2, 5, H), draw(2, 5, H), draw(H)
LAYER, RMS = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
IDS = RNG.integers(0, 20, (2, 5)).astype(np.int32)
KINDS = RNG.integers(0, 2, (2, 5)).astype(np.int32)
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
PLACES = np.array([[4, 3, 2, 1, 0], [0, 0, 5, 5, 5]], np.int32)
WORDS = draw(20, H), draw(7, H), draw(2, H)


def embed(kinds=KINDS, mask=None, places=None, outputs="11", **attrs):
    tables = WORDS if kinds is not None else (*WORDS[:2], None)
    fixed = {2, 3, 5, 6} | ({4} if kinds is not None else set())
    inputs = (IDS, kinds, *tables, ROW, ROW + 1, mask, places)
    return Single("EmbedLayerNormalization", inputs, attrs, frozenset(fixed), outputs)


NORMS = {
    "skip": skip(LAYER, X, OTHER, ROW, ROW + 1),
    "skip without shift": skip(LAYER, X, OTHER, ROW),
    "skip with bias": skip(LAYER, X, OTHER, ROW, ROW + 1, ROW - 2),
    "skip for all batches": skip(LAYER, X, draw(1, 5, H), ROW, ROW + 1),
    "skip of rank 2": skip(LAYER, X, draw(5, H), ROW, ROW + 1),
    "skip of rank 2 everywhere": skip(LAYER, draw(5, H), draw(5, H), ROW, ROW + 1),
    "skip, epsilon": skip(LAYER, X, OTHER, ROW, ROW + 1, epsilon=0.5),
    "skip, default epsilon": skip(LAYER, X * 0 + 1, OTHER * 0, ROW, ROW + 1, outputs="1"),
    "rms skip": skip(RMS, X, OTHER, ROW),
    "rms skip with bias": skip(RMS, X, OTHER, ROW, ROW - 2),
    "rms skip, epsilon": skip(RMS, X, OTHER, ROW, epsilon=0.5, outputs="1"),
    "rms": Single("SimplifiedLayerNormalization", (X, ROW), {"epsilon": 0.25}, domain=""),
    "embed": embed(),
    "embed without segments": embed(None),
    "embed, lengths": embed(mask=MASK),
    "embed, places": embed(places=PLACES),
    "embed, sum": embed(mask=MASK, places=PLACES, outputs="111", epsilon=0.5),
}

IMAGE, WEIGHT = draw(2, 4, 7, 6), draw(6, 2, 3, 3)
FOLDED = draw(2, 6, 7, 6)


def conv(*rest, **attrs):
    inputs = (IMAGE, WEIGHT, *rest)
    fixed = {1, 2} if rest and rest[0] is not None else {1}
    given = {"group": 2, "pads": [1, 1, 1, 1], **attrs}
    return Single("FusedConv", inputs, given, frozenset(fixed))


def gemm(**attrs):
    sides = draw(3, 5) if not attrs.get("transA") else draw(5, 3), draw(5, 4)
    inputs = (*sides, draw(4))
    return Single("FusedGemm", inputs, attrs, frozenset({1, 2}))


def product(a, b, **attrs):
    return Single("FusedMatMul", (draw(*a), draw(*b)), attrs)


ACTIVATED = {
    "gelu": Single("Gelu", (X,)),
    "bias gelu": Single("BiasGelu", (X, ROW), {}, frozenset({1})),
    "fast gelu": Single("FastGelu", (X,)),
    "fast gelu with bias": Single("FastGelu", (X, ROW), {}, frozenset({1})),
    "quick gelu": Single("QuickGelu", (X,)),
    "quick gelu, alpha": Single("QuickGelu", (X,), {"alpha": 0.75}),
    "conv": conv(ROW[:6]),
    "conv, relu": conv(ROW[:6], activation="Relu"),
    "conv without bias": conv(activation="Relu"),
    "conv, sum": conv(ROW[:6], FOLDED, activation="Relu"),
    "conv, sum without bias": conv(None, FOLDED),
    "conv, sigmoid": conv(ROW[:6], activation="Sigmoid"),
    "conv, tanh": conv(ROW[:6], activation="Tanh"),
    "conv, clip": conv(ROW[:6], activation="Clip", activation_params=[-0.5, 1.0]),
    "conv, leaky": conv(ROW[:6], activation="LeakyRelu", activation_params=[0.3]),
    "conv, hard": conv(ROW[:6], activation="HardSigmoid", activation_params=[0.3, 0.4]),
    "conv, same": conv(ROW[:6], pads=None, auto_pad="SAME_UPPER", activation="Relu"),
    "gemm, relu": gemm(activation="Relu", alpha=0.5, beta=2.0),
    "gemm, leaky": gemm(activation="LeakyRelu", activation_alpha=0.3, transA=1),
    "gemm, elu": gemm(activation="Elu", activation_alpha=0.5),
    "gemm, selu": gemm(activation="Selu", activation_alpha=1.5, activation_gamma=1.1),
    "gemm, threshold": gemm(activation="ThresholdedRelu", activation_alpha=0.5),
    "gemm, hard": gemm(activation="HardSigmoid", activation_alpha=0.3, activation_beta=0.4),
    "gemm, softplus": gemm(activation="Softplus"),
    "gemm, softsign": gemm(activation="Softsign"),
    "gemm, sigmoid": gemm(activation="Sigmoid"),
    "gemm, tanh": gemm(activation="Tanh"),
    "product": product((3, 4, 5), (3, 5, 6), alpha=0.5),
    "product, a turned": product((3, 5, 4), (3, 5, 6), transA=1),
    "product, b turned": product((2, 3, 4, 5), (2, 3, 6, 5), transB=1, alpha=0.125),
    "product, both turned": product((5, 4), (6, 5), transA=1, transB=1),
    "product, a's batch turned": product((4, 3, 5), (3, 5, 6), transBatchA=1),
    "product, a's batches turned": product((4, 2, 3, 5), (2, 3, 5, 6), transBatchA=1),
    "product, b's batch turned": product((3, 4, 5), (5, 3, 6), transBatchB=1),
    "product, all turned": product(
        (4, 2, 3, 5), (6, 2, 3, 4), transBatchA=1, transBatchB=1, transA=1, transB=1
    ),
}
for _name in ("conv, same",):
    ACTIVATED[_name].attrs.pop("pads")


@pytest.mark.parametrize("name", NORMS)
def test_norm(name):
    assert_single(NORMS[name])


@pytest.mark.parametrize("name", ACTIVATED)
def test_activation_or_product(name):
    assert_single(ACTIVATED[name])


U8, I8, F32 = np.uint8, np.int8, np.float32


def whole(dtype, *shape):
    return drawn(RNG, dtype, *shape)


def scaled(scale, zero, dtype):
    return F32(scale), dtype(zero)


def integer(op, inputs, constants=(), steps=0, limit=1e-5, **attrs):
    arrays = tuple(None if a is None else np.asarray(a) for a in inputs)
    fixed = frozenset(n for n in constants if arrays[n] is not None)
    return Single(op, arrays, attrs, fixed, limit=limit, steps=steps)


def dynamic(b, *rest):
    return integer("DynamicQuantizeMatMul", (draw(2, 5, 8), b, *rest), range(1, 2 + len(rest)))


def to_float(a, b, *rest):
    return integer("MatMulIntegerToFloat", (a, b, *rest), [1, *range(2, 2 + len(rest))])


def pool(x, **attrs):
    """An average lies between two steps so often that float sums in another order show."""
    inputs = (x, *ONE, *THREE)
    return integer("QLinearAveragePool", inputs, steps=1, **attrs)


def gemm8(*rest, dtype=U8, **attrs):
    a = whole(dtype, 5, 3) if attrs.get("transA") else whole(dtype, 3, 5)
    b = whole(I8, 4, 5) if attrs.get("transB") else whole(I8, 5, 4)
    head = (a, *scaled(0.02, 3, dtype), b, F32(0.01), I8(0))
    return integer("QGemm", (*head, *rest), range(3, 6 + len(rest)), **attrs)


PIXELS = whole(U8, 2, 3, 6, 5)
LAST = np.ascontiguousarray(PIXELS.transpose(0, 2, 3, 1))
ONE, TWO, THREE = scaled(0.03, 120, U8), scaled(0.02, 5, U8), scaled(0.05, 9, U8)
SIGNED = scaled(0.03, -7, I8)
C32 = RNG.integers(-2000, 2000, 4).astype(np.int32)
QUANTISED = {
    "dynamic": dynamic(whole(I8, 8, 6), F32(0.02)),
    "dynamic, zero point": dynamic(whole(U8, 8, 6), F32(0.02), U8(120)),
    "dynamic, bias": dynamic(whole(I8, 8, 6), F32(0.02), I8(3), draw(6)),
    "dynamic, per column": dynamic(whole(I8, 8, 6), draw(6) ** 2 + F32(0.01), None, draw(6)),
    "dynamic, per column with zero points": dynamic(
        whole(I8, 8, 6), draw(6) ** 2 + F32(0.01), whole(I8, 6)
    ),
    "to float": to_float(whole(U8, 2, 5, 8), whole(U8, 8, 6), F32(0.02), F32(0.01)),
    "to float, zero points": to_float(
        whole(U8, 5, 8), whole(I8, 8, 6), F32(0.02), F32(0.01), U8(3), I8(2), draw(6)
    ),
    "to float, per column": to_float(
        whole(U8, 5, 8), whole(I8, 8, 6), F32(0.02), draw(6) ** 2, U8(3), whole(I8, 6), draw(6)
    ),
    "to float, signed": to_float(whole(I8, 5, 8), whole(I8, 8, 6), F32(0.02), F32(0.01), I8(-3)),
    "gemm to float": gemm8(C32),
    "gemm": gemm8(C32, F32(0.05), U8(128)),
    "gemm without c": gemm8(None, F32(0.05), U8(128)),
    "gemm, alpha": gemm8(C32, F32(0.05), U8(128), alpha=0.5),
    "gemm, turned": gemm8(C32, F32(0.05), U8(128), transA=1, transB=1),
    "gemm, signed": gemm8(C32, F32(0.05), I8(3), dtype=I8),
    "add": integer("QLinearAdd", (PIXELS, *ONE, PIXELS[::-1], *TWO, *THREE)),
    "add, row": integer("QLinearAdd", (PIXELS, *ONE, PIXELS[0, 0, 0], *TWO, *THREE)),
    "add, signed": integer(
        "QLinearAdd", (whole(I8, 3, 4), *SIGNED, whole(I8, 3, 4), *SIGNED, *SIGNED)
    ),
    "mul": integer("QLinearMul", (PIXELS, *ONE, PIXELS[::-1], *TWO, *THREE)),
    "mul, number": integer("QLinearMul", (PIXELS, *ONE, U8(77), *TWO, *THREE)),
    "sigmoid": integer("QLinearSigmoid", (PIXELS, *ONE, F32(1 / 256), U8(0)), [1, 2, 3, 4]),
    "leaky": integer("QLinearLeakyRelu", (PIXELS, *ONE, *TWO), [1, 2, 3, 4], alpha=0.2),
    "leaky, default": integer("QLinearLeakyRelu", (PIXELS, *ONE, *TWO), [1, 2, 3, 4]),
    "softmax": integer(
        "QLinearSoftmax", (PIXELS, *ONE, F32(1 / 256), U8(0)), [1, 2, 3, 4], 1, opset=13
    ),
    "softmax of channels": integer(
        "QLinearSoftmax", (PIXELS, *ONE, F32(1 / 256), U8(0)), [1, 2, 3, 4], 1, opset=13, axis=1
    ),
    "softmax, signed": integer(
        "QLinearSoftmax",
        (whole(I8, 3, 7), *SIGNED, F32(1 / 256), I8(-128)),
        [1, 2, 3, 4],
        1,
        opset=13,
    ),
    "softmax of opset 12": integer(
        "QLinearSoftmax", (PIXELS, *ONE, F32(1 / 256), U8(0)), [1, 2, 3, 4], 1, opset=12, axis=2
    ),
    "global pool": integer("QLinearGlobalAveragePool", (PIXELS, *ONE, *THREE), channels_last=0),
    "global pool, last": integer("QLinearGlobalAveragePool", (LAST, *ONE, *THREE), channels_last=1),
    "pool": pool(PIXELS, kernel_shape=[2, 3]),
    "pool, pads": pool(PIXELS, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 1]),
    "pool, pads count": pool(PIXELS, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    "pool, ceil": pool(PIXELS, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "pool, last": pool(LAST, kernel_shape=[2, 3], channels_last=1),
    "concat": integer("QLinearConcat", (*THREE, PIXELS, *ONE, PIXELS, *TWO), axis=1),
    "where": integer(
        "QLinearWhere", (PIXELS[:1] > 99, PIXELS, *ONE, PIXELS[::-1], *TWO, *THREE), range(2, 4)
    ),
    "conv, last": integer(
        "QLinearConv",
        (LAST, *ONE, whole(I8, 4, 3, 3, 3), F32(0.01), I8(0), F32(0.3), U8(99), C32),
        range(1, 9),
        channels_last=1,
        pads=[1, 1, 1, 1],
    ),
    "max pool, last": integer("NhwcMaxPool", (LAST,), kernel_shape=[2, 2]),
}


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_op(name):
    assert_single(QUANTISED[name])


def test_an_op_in_blocks_of_channels_is_refused_with_the_level_to_save_at():
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 16, 4, 4]) for n in "xy")
    domain = "com.microsoft.nchwc"
    node = helper.make_node("ReorderOutput", ["x"], ["y"], domain=domain, channels=16)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    graph = helper.make_graph([node], "g", [x], [y])
    data = onnx.helper.make_model(graph, opset_imports=imports).SerializeToString()
    with pytest.raises(ConvertError) as caught:
        convert(data)
    assert "com.microsoft.nchwc.ReorderOutput: 1 x" in str(caught.value)
    assert "ORT_ENABLE_EXTENDED" in caught.value.fix


def test_the_page_names_every_op():
    page = CHECKOUT / "docs" / "reference" / "onnx-runtime-files.md"
    words = set(re.findall(r"\w+", page.read_text()))
    assert not set(MICROSOFT_TABLE) - words


REFUSED = {
    "do_rotary": Single("Attention", (X, draw(H, 3 * H)), {"num_heads": 4, "do_rotary": 1}),
    "do not split": Single("Attention", (X, draw(H, 3 * H)), {"num_heads": 5}),
    "one buffer": Single(
        "Attention",
        (X, draw(H, 3 * H), None, None, draw(2, 2, 4, 9, 6), None, np.array(3, np.int32)),
        {"num_heads": 4, "past_present_share_buffer": 1},
    ),
    "mask of shape [7]": Single(
        "Attention", (X, draw(H, 3 * H), None, np.arange(7, dtype=np.int32)), {"num_heads": 4}
    ),
    "scores (qk)": Single("MultiHeadAttention", (X, X, X), {"num_heads": 4}, outputs="1111"),
    "is unknown": Single("FusedConv", (IMAGE, WEIGHT), {"group": 2, "activation": "Exp"}),
    "has 1 activation_params": Single(
        "FusedConv",
        (IMAGE, WEIGHT),
        {"group": 2, "activation": "Clip", "activation_params": [1.0]},
    ),
    "is_packed_batching": Single(
        "RotaryEmbedding",
        (X, np.array([0]), draw(9, 12), draw(9, 12)),
        {"is_packed_batching": 1},
    ),
    "mean and inv_std_var": skip(RMS, X, OTHER, ROW, outputs="11"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_form_that_is_not_supported_is_refused_with_its_reason(why):
    with pytest.raises(ConvertError) as caught:
        convert(REFUSED[why].model())
    assert why in str(caught.value)
