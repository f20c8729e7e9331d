"""Files with a shape signature: open sizes and computed shapes, beside LiteRT at every size."""

import numpy as np
import pytest
from litert import interpreter
from tflite_builder import Op, T, constant, model

import trireme
from trireme.support.errors import ConvertError

SEED = 11


def ints(*values):
    return constant(np.array(values, np.int32))


def scalar(value):
    return constant(np.array(value, np.int32))


def head():
    """A convolution, then rows by the batch that the graph takes from its own shape."""
    rng = np.random.default_rng(SEED)
    weights = constant(rng.standard_normal((5, 3, 3, 4)).astype(np.float32))
    tensors = [
        T((1, 6, 7, 4), signature=(-1, 6, 7, 4)),
        weights,
        constant(np.zeros(5, np.float32)),
        T((1, 3, 4, 5), signature=(-1, 3, 4, 5)),
        T((4,), "int32"),
        ints(0),
        ints(1),
        T((), "int32"),
        scalar(60),
        T((2,), "int32"),
        T((1, 60), signature=(-1, 60)),
    ]
    conv = {"Padding": 0, "StrideH": 2, "StrideW": 2, "DilationHFactor": 1, "DilationWFactor": 1}
    operators = [
        Op("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", conv),
        Op("SHAPE", [3], [4], "ShapeOptions", {"OutType": 2}),
        Op("STRIDED_SLICE", [4, 5, 6, 6], [7], "StridedSliceOptions", {"ShrinkAxisMask": 1}),
        Op("PACK", [7, 8], [9], "PackOptions", {"ValuesCount": 2}),
        Op("RESHAPE", [3, 9], [10]),
    ]
    return model(tensors, operators, [0], [10])


def cut():
    """x[:, 1 : length - 1, ::-1] of a sequence, whose length is taken from its shape."""
    tensors = [
        T((2, 1, 6), signature=(2, -1, 6)),
        T((3,), "int32"),
        ints(1),
        ints(2),
        ints(1),
        T((), "int32"),
        scalar(1),
        T((), "int32"),
        scalar(0),
        T((3,), "int32"),
        ints(0, 1, 0),
        ints(1, 1, -1),
        T((2, 1, 6), signature=(2, -1, 6)),
    ]
    masks = {"BeginMask": 5, "EndMask": 5}
    operators = [
        Op("SHAPE", [0], [1], "ShapeOptions", {"OutType": 2}),
        Op("STRIDED_SLICE", [1, 2, 3, 4], [5], "StridedSliceOptions", {"ShrinkAxisMask": 1}),
        Op("SUB", [5, 6], [7], "SubOptions", {}),
        Op("PACK", [8, 7, 8], [9], "PackOptions", {"ValuesCount": 3}),
        Op("STRIDED_SLICE", [0, 10, 9, 11], [12], "StridedSliceOptions", masks),
    ]
    return model(tensors, operators, [0], [12])


def tokens():
    """A token for each row of a batch: BROADCAST_TO, TILE and SLICE to sizes of the input."""
    tensors = [
        T((1, 3), signature=(-1, 3)),
        T((2,), "int32"),
        constant(np.array([[1.0, 2.0, 3.0]], np.float32)),
        T((1, 3), signature=(-1, 3)),
        T((1, 3), signature=(-1, 3)),
        T((1, 3), signature=(-1, 3)),
        ints(0, 1),
        T((1, 2), signature=(-1, -1)),
        ints(-1, 2),
        ints(1, 1),
        T((2,), "int32"),
        T((1, 9), signature=(-1, -1)),
    ]
    operators = [
        Op("SHAPE", [0], [1], "ShapeOptions", {"OutType": 2}),
        Op("BROADCAST_TO", [2, 1], [3]),
        Op("ADD", [0, 3], [4], "AddOptions", {}),
        Op("SLICE", [4, 6, 8], [7]),
        Op("MAXIMUM", [1, 9], [10]),
        Op("TILE", [7, 10], [11]),
    ]
    return model(tensors, operators, [0], [7, 11])


def peer_run(data, x):
    """LiteRT's outputs, in order, with its input resized to x."""
    made = interpreter(data)
    (detail,) = made.get_input_details()
    made.resize_tensor_input(detail["index"], x.shape)
    made.allocate_tensors()
    made.set_tensor(detail["index"], x)
    made.invoke()
    return [made.get_tensor(one["index"]) for one in made.get_output_details()]


def agree(session, data, shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    found = session.run({session.inputs[0].name: x}).values()
    for one, wanted in zip(found, peer_run(data, x), strict=True):
        assert one.shape == wanted.shape
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-5)


OPENED = {
    "head": (head, ("n<=8", 6, 7, 4), [(1, 6, 7, 4), (3, 6, 7, 4), (8, 6, 7, 4)]),
    "cut": (cut, (2, "s<=20", 6), [(2, 5, 6), (2, 3, 6), (2, 20, 6)]),
    "tokens": (tokens, ("n", 3), [(1, 3), (4, 3), (2, 3)]),
}


@pytest.mark.parametrize("name", OPENED)
def test_open_sizes_equal_litert_at_every_size(name):
    make, shape, shapes = OPENED[name]
    data, rng = make(), np.random.default_rng(SEED)
    with trireme.Session(data, shapes={"t0": shape}) as session:
        for one in shapes:
            agree(session, data, one, rng)
        assert len(session.stages) == 1


def test_an_open_batch_is_one_by_default_as_in_litert():
    graph = trireme.convert(head())
    assert all(value.type.is_static for value in graph.values.values())
    assert [node.op for node in graph.nodes] == ["conv", "reshape"]
    with trireme.Session(head()) as session:
        agree(session, head(), (1, 6, 7, 4), np.random.default_rng(SEED))


def test_an_input_that_is_open_behind_its_batch_stays_open():
    assert next(trireme.convert(cut()).input_values()).shape == (2, "t0_1", 6)
    with trireme.Session(cut()) as session:
        agree(session, cut(), (2, 7, 6), np.random.default_rng(SEED))


def test_a_fixed_size_can_be_given_for_an_open_one():
    with trireme.Session(head(), shapes={"t0": (4, 6, 7, 4)}) as session:
        assert session.outputs[0].type.dims == (4, 60)
        agree(session, head(), (4, 6, 7, 4), np.random.default_rng(SEED))


def strided(code, dtype="float32"):
    """A window of stride 2 with SAME padding on an open height and width."""
    rng = np.random.default_rng(SEED)
    scale = {} if dtype == "float32" else {"scales": (0.05,), "zeros": (-3,)}
    x = T((1, 8, 8, 4), dtype, **scale, signature=(1, -1, -1, 4))
    y = T((1, 4, 4, 4), dtype, **scale, signature=(1, -1, -1, 4))
    window = {"Padding": 0, "StrideH": 2, "StrideW": 3}
    if code.endswith("POOL_2D"):
        window |= {"FilterHeight": 3, "FilterWidth": 2}
        return model([x, y], [Op(code, [0], [1], "Pool2DOptions", window)], [0], [1])
    shape = (4, 3, 5, 4) if code == "CONV_2D" else (1, 3, 5, 4)
    drawn = rng.standard_normal(shape).astype(np.float32)
    bias = rng.standard_normal(4).astype(np.float32)
    weights, offsets = constant(drawn), constant(bias)
    if dtype != "float32":
        weights = constant(rng.integers(-127, 128, shape).astype(np.int8), 0.01)
        offsets = constant(rng.integers(-500, 500, 4).astype(np.int32), 0.0005)
    window |= {"DilationHFactor": 1, "DilationWFactor": 1}
    if code == "DEPTHWISE_CONV_2D":
        window["DepthMultiplier"] = 1
    kind = "Conv2DOptions" if code == "CONV_2D" else "DepthwiseConv2DOptions"
    return model([x, weights, offsets, y], [Op(code, [0, 1, 2], [3], kind, window)], [0], [3])


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("code", ["CONV_2D", "DEPTHWISE_CONV_2D", "MAX_POOL_2D", "AVERAGE_POOL_2D"])
def test_same_padding_of_a_stride_follows_the_size(code, dtype, tmp_path):
    data = strided(code, dtype)
    if (code, dtype) == ("AVERAGE_POOL_2D", "int8"):
        with pytest.raises(ConvertError, match="SAME padding with stride 2 depends on t0_1"):
            trireme.convert(data, shapes={"t0": (1, "h", "w", 4)})
        return
    path = tmp_path / "strided.tflite"
    path.write_bytes(data)
    rng = np.random.default_rng(SEED)
    sessions = [trireme.Session(source, shapes={"t0": (1, "h", "w", 4)}) for source in (path, data)]
    for height, width in ((8, 8), (7, 9), (1, 1), (2, 4), (13, 6), (16, 17)):
        x = rng.standard_normal((1, height, width, 4)).astype(np.float32)
        if dtype == "int8":
            x = rng.integers(-128, 128, x.shape).astype(np.int8)
        made = interpreter(data)
        made.resize_tensor_input(made.get_input_details()[0]["index"], x.shape)
        made.allocate_tensors()
        made.set_tensor(made.get_input_details()[0]["index"], x)
        made.invoke()
        want = made.get_tensor(made.get_output_details()[0]["index"])
        for session in sessions:
            (got,) = session.run({"t0": x}).values()
            assert got.shape == want.shape
            limit = 0 if dtype == "int8" or code == "MAX_POOL_2D" else 2e-5
            off = np.abs(got.astype(np.float64) - want).max()
            assert off <= limit, f"{height} x {width}: off by {off}, seed {SEED}"


def blocks():
    """A dilated convolution of an open batch, as Keras writes it, and channels made space."""
    rng = np.random.default_rng(SEED)
    tensors = [
        T((1, 6, 8, 4), signature=(-1, 6, 8, 4)),
        ints(2, 2),
        constant(np.array([[2, 2], [2, 2]], np.int32)),
        T((4, 5, 6, 4), signature=(-1, 5, 6, 4)),
        constant(rng.standard_normal((4, 3, 3, 4)).astype(np.float32)),
        constant(np.zeros(4, np.float32)),
        T((4, 3, 4, 4), signature=(-1, 3, 4, 4)),
        constant(np.zeros((2, 2), np.int32)),
        T((1, 6, 8, 4), signature=(-1, 6, 8, 4)),
        T((1, 12, 16, 1), signature=(-1, 12, 16, 1)),
        T((1, 6, 8, 4), signature=(-1, 6, 8, 4)),
    ]
    conv = {"Padding": 1, "StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
    operators = [
        Op("SPACE_TO_BATCH_ND", [0, 1, 2], [3]),
        Op("CONV_2D", [3, 4, 5], [6], "Conv2DOptions", conv),
        Op("BATCH_TO_SPACE_ND", [6, 1, 7], [8]),
        Op("DEPTH_TO_SPACE", [8], [9], "DepthToSpaceOptions", {"BlockSize": 2}),
        Op("SPACE_TO_DEPTH", [9], [10], "SpaceToDepthOptions", {"BlockSize": 2}),
    ]
    return model(tensors, operators, [0], [8, 9, 10])


def upwards():
    """A transposed convolution whose output shape is computed from the open batch."""
    rng = np.random.default_rng(SEED)
    tensors = [
        T((1, 5, 6, 3), signature=(-1, 5, 6, 3)),
        T((4,), "int32"),
        ints(0),
        ints(1),
        T((), "int32"),
        scalar(10),
        scalar(12),
        scalar(2),
        T((4,), "int32"),
        constant(rng.standard_normal((2, 3, 3, 3)).astype(np.float32)),
        T((1, 10, 12, 2), signature=(-1, 10, 12, 2)),
    ]
    operators = [
        Op("SHAPE", [0], [1], "ShapeOptions", {"OutType": 2}),
        Op("STRIDED_SLICE", [1, 2, 3, 3], [4], "StridedSliceOptions", {"ShrinkAxisMask": 1}),
        Op("PACK", [4, 5, 6, 7], [8], "PackOptions", {"ValuesCount": 4}),
        Op(
            "TRANSPOSE_CONV",
            [8, 9, 0],
            [10],
            "TransposeConvOptions",
            {"Padding": 0, "StrideH": 2, "StrideW": 2},
        ),
    ]
    return model(tensors, operators, [0], [10])


def flat():
    """A reshape to a constant without elements: a scalar."""
    tensors = [T((1,)), constant(np.zeros(0, np.int32)), T(()), T(())]
    operators = [Op("RESHAPE", [0, 1], [2]), Op("NEG", [2], [3])]
    return model(tensors, operators, [0], [3])


@pytest.mark.parametrize("made", [blocks, upwards])
def test_moves_of_an_open_batch(made, tmp_path):
    data, rng = made(), np.random.default_rng(SEED)
    path = tmp_path / "moves.tflite"
    path.write_bytes(data)
    _, *rest = next(trireme.convert(data).input_values()).type.dims
    for source in (path, data):
        with trireme.Session(source, shapes={"t0": ("n", *rest)}) as session:
            for batch in (1, 3, 2):
                agree(session, data, (batch, *rest), rng)


def test_a_constant_without_elements():
    with trireme.Session(flat()) as session:
        agree(session, flat(), (1,), np.random.default_rng(SEED))
