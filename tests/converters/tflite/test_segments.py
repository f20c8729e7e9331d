"""Segments, suppression, updates and diagonals: a Session from path and bytes, beside LiteRT."""

import numpy as np
import pytest
from flatbuffers import flexbuffers
from litert import interpreter
from tflite_builder import Op, Sub, T, constant, model, model_of, one_op

import trireme
from trireme.support.errors import TriremeError

SEED = 23


def number(value, dtype=np.int32):
    return constant(np.array(value, dtype))


def ints(*values):
    return constant(np.array(values, np.int32))


def theirs(data, feeds, reference=True):
    made = interpreter(data, reference=reference)
    for detail in made.get_input_details():
        made.resize_tensor_input(detail["index"], feeds[detail["name"]].shape)
    made.allocate_tensors()
    for detail in made.get_input_details():
        made.set_tensor(detail["index"], feeds[detail["name"]])
    made.invoke()
    return [made.get_tensor(detail["index"]) for detail in made.get_output_details()]


def check(data, feeds, tmp_path, shapes=None, reference=True):
    """Every output has LiteRT's bits, from a path and from bytes."""
    want = theirs(data, feeds, reference)
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    for source in (path, data):
        got = list(trireme.Session(source, shapes=shapes).run(feeds).values())
        assert len(got) == len(want)
        for ours, wanted in zip(got, want, strict=True):
            np.testing.assert_array_equal(ours, wanted, err_msg=f"seed {SEED}", strict=True)


@pytest.mark.parametrize("kind", ["SUM", "PROD", "MAX", "MIN"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("ids", ["fed", "constant"])
def test_unsorted_segment(kind, dtype, ids, tmp_path):
    rng = np.random.default_rng(SEED)
    places = np.array([4, -1, 0, 2, 0, 4, -7], np.int32)
    if ids == "constant" and dtype == "int32":
        places = np.abs(places) % 5
    data = rng.integers(-5, 6, (7, 3)).astype(dtype)
    if dtype == "float32":
        data = rng.standard_normal((7, 3)).astype(dtype)
    given = T((7,), "int32") if ids == "fed" else constant(places)
    file = one_op(
        f"UNSORTED_SEGMENT_{kind}",
        [T((7, 3), dtype), given, number(6)],
        [T((6, 3), dtype)],
        f"UnsortedSegment{kind.title()}Options",
    )
    feeds = {"t0": data} | ({"t1": places} if ids == "fed" else {})
    check(file, feeds, tmp_path)


def test_ids_of_two_dimensions_and_an_open_count(tmp_path):
    rng = np.random.default_rng(SEED)
    file = one_op(
        "UNSORTED_SEGMENT_SUM",
        [
            T((1, 3, 4), signature=(-1, 3, 4)),
            T((1, 3), "int32", signature=(-1, 3)),
            number(5),
        ],
        [T((5, 4), signature=(-1, 4))],
        "UnsortedSegmentSumOptions",
    )
    shapes = {"t0": ("n<=9", 3, 4), "t1": ("n<=9", 3)}
    for n in (1, 4, 9):
        feeds = {
            "t0": rng.standard_normal((n, 3, 4)).astype(np.float32),
            "t1": rng.integers(-1, 5, (n, 3)).astype(np.int32),
        }
        check(file, feeds, tmp_path, shapes)


def test_an_id_past_the_segments_is_an_error():
    file = one_op(
        "UNSORTED_SEGMENT_SUM",
        [T((3,)), T((3,), "int32"), number(2)],
        [T((2,))],
        "UnsortedSegmentSumOptions",
    )
    session = trireme.Session(file)
    for wrong in (2, 3, 2**31 - 1):
        with pytest.raises(TriremeError):
            session.run({"t0": np.ones(3, np.float32), "t1": np.array([0, wrong, 1], np.int32)})


@pytest.mark.parametrize("fed", [True, False])
def test_segment_sum(fed, tmp_path):
    rng = np.random.default_rng(SEED)
    ids = np.array([0, 0, 1, 2, 2, 3], np.int32)
    data = rng.standard_normal((6, 2, 3)).astype(np.float32)
    given = T((6,), "int32") if fed else constant(ids)
    file = one_op("SEGMENT_SUM", [T((6, 2, 3)), given], [T((4, 2, 3))], "SegmentSumOptions")
    # the reference kernels have none
    check(file, {"t0": data} | ({"t1": ids} if fed else {}), tmp_path, reference=False)


def test_a_product_of_sizes_is_followed():
    """Keras writes the sizes of an attention's reshape with UNSORTED_SEGMENT_PROD."""
    tensors = [
        T((1, 4, 6), signature=(-1, -1, 6)),
        T((3,), "int32"),
        ints(0, 0, 1),
        number(2),
        T((2,), "int32"),
        T((4, 6), signature=(-1, -1)),
    ]
    operators = [
        Op("SHAPE", [0], [1], "ShapeOptions", {"OutType": 2}),
        Op("UNSORTED_SEGMENT_PROD", [1, 2, 3], [4], "UnsortedSegmentProdOptions"),
        Op("RESHAPE", [0, 4], [5]),
    ]
    data = model_of([Sub(tensors, operators, [0], [5])])
    graph = trireme.convert(data, shapes={"t0": ("n", "s", 6)})
    assert graph.type(graph.outputs[0]).shape == ("n*s", 6)
    rng = np.random.default_rng(SEED)
    session = trireme.Session(data, shapes={"t0": ("n", "s", 6)})
    for n, s in ((1, 4), (3, 5), (2, 1)):
        x = rng.standard_normal((n, s, 6)).astype(np.float32)
        (got,) = session.run({"t0": x}).values()
        np.testing.assert_array_equal(got, theirs(data, {"t0": x})[0], strict=True)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [1, 7, 40])
def test_suppression(soft, ties, count, tmp_path):
    rng = np.random.default_rng([SEED, count])
    numbers = [number(value, np.float32) for value in ((0.7, 0.15, 0.4) if soft else (0.4, 0.15))]
    outputs = [T((12,), "int32"), T((), "int32")]
    if soft:
        outputs.insert(1, T((12,)))
    code = f"NON_MAX_SUPPRESSION_V{5 if soft else 4}"
    kind = f"NonMaxSuppressionV{5 if soft else 4}Options"
    inputs = [T((count, 4)), T((count,)), number(12), *numbers]
    file = one_op(code, inputs, outputs, kind)
    for _ in range(4):
        boxes = rng.random((count, 4)).astype(np.float32)
        boxes[::5, 2] = boxes[::5, 0]  # boxes without an area overlap nothing
        scores = rng.random(count).astype(np.float32)
        if ties:
            scores = (np.round(scores * 4) / 4).astype(np.float32)
        check(file, {"t0": boxes, "t1": scores}, tmp_path)


@pytest.mark.parametrize("start", [(0, 0, 0), (0, 3, 1), (5, 90, -4), (0, -1, 0)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_dynamic_update_slice(start, dtype, tmp_path):
    rng = np.random.default_rng(SEED)
    file = one_op(
        "DYNAMIC_UPDATE_SLICE",
        [T((1, 8, 4), dtype), T((1, 2, 4), dtype), T((3,), "int32")],
        [T((1, 8, 4), dtype)],
    )
    feeds = {
        "t0": rng.integers(-9, 9, (1, 8, 4)).astype(dtype),
        "t1": rng.integers(-9, 9, (1, 2, 4)).astype(dtype),
        "t2": np.array(start, np.int32),
    }
    check(file, feeds, tmp_path)


SMALL = {
    "sparse_to_dense": (
        "SPARSE_TO_DENSE",
        [T((3, 2), "int32"), ints(4, 5), T((3,)), number(-1.5, np.float32)],
        [T((4, 5))],
        "SparseToDenseOptions",
        {"t0": np.array([[0, 1], [2, 4], [3, 0]], np.int32), "t2": np.float32([1, 2, 3])},
        {},
    ),
    "one value": (
        "SPARSE_TO_DENSE",
        [T((3,), "int32"), ints(6), number(7), number(0)],
        [T((6,), "int32")],
        "SparseToDenseOptions",
        {"t0": np.array([0, 2, 5], np.int32)},
        {},
    ),
    "matrix_diag": (
        "MATRIX_DIAG",
        [T((2, 3))],
        [T((2, 3, 3))],
        "MatrixDiagOptions",
        {"t0": np.arange(6, dtype=np.float32).reshape(2, 3) - 2},
        {},
    ),
    "matrix_set_diag": (
        "MATRIX_SET_DIAG",
        [T((2, 4, 3)), T((2, 3))],
        [T((2, 4, 3))],
        "MatrixSetDiagOptions",
        {
            "t0": np.arange(24, dtype=np.float32).reshape(2, 4, 3),
            "t1": -np.arange(6, dtype=np.float32).reshape(2, 3),
        },
        {},
    ),
    "matrix_set_diag wide": (
        "MATRIX_SET_DIAG",
        [T((2, 5), "int32"), T((2,), "int32")],
        [T((2, 5), "int32")],
        "MatrixSetDiagOptions",
        {"t0": np.arange(10, dtype=np.int32).reshape(2, 5), "t1": np.array([-1, -2], np.int32)},
        {},
    ),
    "broadcast_args": (
        "BROADCAST_ARGS",
        [T((3,), "int32"), T((2,), "int32")],
        [T((3,), "int32")],
        "",
        {"t0": np.array([4, 1, 5], np.int32), "t1": np.array([3, 1], np.int32)},
        {},
    ),
    "bucketize": (
        "BUCKETIZE",
        [T((2, 4))],
        [T((2, 4), "int32")],
        "BucketizeOptions",
        {"t0": np.float32([[-5, 0, 0.5, 1], [2, 9, np.nan, np.inf]])},
        {"Boundaries": (0.0, 0.5, 2.0)},
    ),
    "unique": (
        "UNIQUE",
        [T((6,), "int32")],
        [T((3,), "int32"), T((6,), "int32")],
        "UniqueOptions",
        {"t0": np.array([3, 9, 3, -1, 9, 3], np.int32)},
        {"IdxOutType": 2},
    ),
    "bitwise_xor": (
        "BITWISE_XOR",
        [T((4,), "int32"), T((4,), "int32")],
        [T((4,), "int32")],
        "BitwiseXorOptions",
        {"t0": np.array([1, -7, 0, 99], np.int32), "t1": np.array([3, 5, -1, 98], np.int32)},
        {},
    ),
    "l2_pool": (
        "L2_POOL_2D",
        [T((1, 4, 4, 1))],
        [T((1, 2, 2, 1))],
        "Pool2DOptions",
        {"t0": np.arange(-8, 8, dtype=np.float32).reshape(1, 4, 4, 1)},
        dict(Padding=1, StrideH=2, StrideW=2, FilterHeight=2, FilterWidth=2),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_operators(name, tmp_path):
    code, inputs, outputs, kind, feeds, options = SMALL[name]
    check(one_op(code, inputs, outputs, kind, **options), feeds, tmp_path)


def test_parts_of_a_spectrum(tmp_path):
    tensors = [
        T((2, 1, 16)),
        ints(1, 16),
        T((2, 1, 9), "complex64"),
        T((2, 1, 9)),
        T((2, 1, 9)),
    ]
    operators = [
        Op("RFFT2D", [0, 1], [2], "Rfft2dOptions"),
        Op("REAL", [2], [3]),
        Op("IMAG", [2], [4]),
    ]
    data = model(tensors, operators, [0], [3, 4])
    x = np.random.default_rng(SEED).standard_normal((2, 1, 16)).astype(np.float32)
    got = trireme.Session(data).run({"t0": x}).values()
    for ours, wanted in zip(got, theirs(data, {"t0": x}), strict=True):
        np.testing.assert_allclose(ours, wanted, atol=2e-6)


def test_a_composite_runs_its_decomposition(tmp_path):
    main = Sub(
        [T((2, 3)), T((2, 3)), T((2, 3))],
        [
            Op(
                "STABLEHLO_COMPOSITE",
                [0],
                [1],
                "StableHLOCompositeOptions",
                {
                    "Name": "my.double",
                    "DecompositionSubgraphIndex": 1,
                    "CompositeAttributes": flexbuffers.Dumps({}),
                },
            ),
            Op("NEG", [1], [2]),
        ],
        [0],
        [2],
    )
    body = Sub([T((2, 3)), T((2, 3))], [Op("ADD", [0, 0], [1], "AddOptions")], [0], [1], "double")
    x = np.random.default_rng(SEED).standard_normal((2, 3)).astype(np.float32)
    check(model_of([main, body]), {"t0": x}, tmp_path)


def scatter(shape, axis, places, computation):
    """Rows of an axis replaced, or added to: an update of a cache as PyTorch's converter writes."""
    count = len(places)
    updates = (*shape[:axis], count, *shape[axis + 1 :])
    windows = [other for other in range(len(shape)) if other != axis]
    options = {
        "UpdateWindowDims": windows,
        "InsertedWindowDims": [axis],
        "ScatterDimsToOperandDims": [axis],
        "IndexVectorDim": 1,
        "UpdateComputationSubgraphIndex": 1,
    }
    operator = Op("STABLEHLO_SCATTER", [0, 1, 2], [3], "StablehloScatterOptions", options)
    tensors = [T(shape), T((count, 1), "int32"), T(updates), T(shape)]
    main = Sub(tensors, [operator], [0, 1, 2], [3])
    if computation == "replace":
        body = Sub([T(()), T(())], [], [0, 1], [1], "update")
    else:
        adds = Op("STABLEHLO_ADD", [0, 1], [2])
        body = Sub([T(()), T(()), T(())], [adds], [0, 1], [2], "update")
    return model_of([main, body]), updates


@pytest.mark.parametrize("computation", ["replace", "add"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_scatter_of_whole_windows(axis, computation, tmp_path):
    rng = np.random.default_rng(SEED)
    shape, places = (3, 6, 4), [0, 2, 1] if computation == "replace" else [2, 0, 2]
    data, updates = scatter(shape, axis, places, computation)
    feeds = {
        "t0": rng.standard_normal(shape).astype(np.float32),
        "t1": np.array(places, np.int32).reshape(-1, 1),
        "t2": rng.standard_normal(updates).astype(np.float32),
    }
    check(data, feeds, tmp_path)
    for wrong in (-1, shape[axis]):  # left out
        check(data, feeds | {"t1": np.array([[0], [wrong], [1]], np.int32)}, tmp_path)


@pytest.mark.parametrize("code", ["ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"])
def test_arithmetic_of_stablehlo(code, tmp_path):
    rng = np.random.default_rng(SEED)
    data = one_op(f"STABLEHLO_{code}", [T((3, 4)), T((3, 4))], [T((3, 4))])
    feeds = {name: rng.standard_normal((3, 4)).astype(np.float32) for name in ("t0", "t1")}
    check(data, feeds, tmp_path)
