"""The ops of ai.onnx.ml: random models beside ONNX Runtime, from bytes, on the default device."""

import numpy as np
import onnx
import pytest
from ml_models import MAKERS, feeds, model, with_holes
from onnx import numpy_helper

import trireme
from trireme.support.errors import ConvertError, RunError

onnxruntime = pytest.importorskip("onnxruntime", reason="the peer is ONNX Runtime")
WITHOUT_NAN = {
    "binarizer",
    "linear_classifier",
    "linear_regressor",
    "normalizer",
    "svm_classifier",
    "svm_regressor",
}


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("op", MAKERS)
def test_random_models_equal_onnx_runtime(op, seed):
    print(f"seed {seed}")
    rng = np.random.default_rng([seed, sorted(MAKERS).index(op)])
    data = MAKERS[op](rng)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [one.name for one in peer.get_outputs()]
    with trireme.Session(data) as session:
        for rows in (1, 7, 40):
            fed = feeds(rng, data, rows)
            if op not in WITHOUT_NAN:
                fed = with_holes(rng, fed)
            found, wanted = session.run(fed), peer.run(names, fed)
            for name, right in zip(names, wanted, strict=True):
                assert found[name].shape == right.shape
                if right.dtype.kind == "f":
                    np.testing.assert_allclose(found[name], right, 2e-5, 2e-6)
                else:
                    assert found[name].tolist() == right.tolist()


def test_scores_of_a_zip_map_stay_a_tensor():
    attrs = {
        "coefficients": [1.0, -1.0, 0.5, 0.0, -1.0, 1.0, -0.5, 0.0],
        "intercepts": [0.5, 0.0],
        "classlabels_ints": [3, 8],
        "post_transform": "SOFTMAX",
    }
    data = model("LinearClassifier", ["float32"], {"label": "int64", "raw": "float32"}, attrs, 1)
    proto = onnx.load_from_string(data)
    zipped = onnx.helper.make_node(
        "ZipMap", ["raw"], ["scores"], domain="ai.onnx.ml", classlabels_int64s=[3, 8]
    )
    proto.graph.node.append(zipped)
    of_maps = onnx.helper.make_map_type_proto(
        onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    proto.graph.output[1].CopyFrom(
        onnx.helper.make_value_info("scores", onnx.helper.make_sequence_type_proto(of_maps))
    )
    data = proto.SerializeToString()
    x = np.array([[1, 0, 2, 0], [0, 3, 0, 1]], np.float32)
    _, maps = onnxruntime.InferenceSession(data).run(None, {"x0": x})
    with trireme.Session(data) as session:
        found = session.run({"x0": x})["scores"]
    np.testing.assert_allclose(found, [[row[3], row[8]] for row in maps], 1e-6)


def test_a_category_that_is_not_known_is_an_error_where_the_model_says_so():
    data = model("OneHotEncoder", ["int64"], {"y": "float32"}, {"cats_int64s": [1, 4], "zeros": 0})
    with trireme.Session(data) as session:
        right = session.run({"x0": np.array([[4, 1, 1, 4]])})["y"]
        np.testing.assert_array_equal(right.argmax(-1), [[1, 0, 0, 1]])
        with pytest.raises(RunError, match="5 is none of the 2 categories"):
            session.run({"x0": np.array([[4, 5, 1, 4]])})


@pytest.mark.parametrize("name", ["aggregate_function", "post_transform"])
@pytest.mark.parametrize("number", [-1, 9])
def test_numbers_that_stand_for_no_word_are_refused(name, number):
    attrs = member_tree([1], 0) | {name: number}
    with pytest.raises(ConvertError, match=f"{name} {number} is unknown"):
        trireme.Session(model("TreeEnsemble", ["float32"], {"y": "float32"}, attrs, 5))


def member_tree(values, tracks):
    """A TreeEnsemble of one node, with a set of members."""
    return {
        "n_targets": 1,
        "tree_roots": [0],
        "nodes_featureids": [2],
        "nodes_modes": numpy_helper.from_array(np.array([6], np.uint8)),
        "nodes_splits": numpy_helper.from_array(np.array([0], np.float32)),
        "nodes_truenodeids": [0],
        "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1],
        "nodes_falseleafs": [1],
        "nodes_missing_value_tracks_true": [tracks],
        "membership_values": numpy_helper.from_array(np.array([*values, np.nan], np.float32)),
        "leaf_targetids": [0, 0],
        "leaf_weights": numpy_helper.from_array(np.array([10, -10], np.float32)),
    }


@pytest.mark.parametrize("tracks", [0, 1])
def test_a_node_may_test_for_members_of_a_set(tracks):
    attrs = member_tree([3, -1, 0.5], tracks)
    data = model("TreeEnsemble", ["float32"], {"y": "float32"}, attrs, 5)
    x = np.zeros((7, 4), np.float32)
    x[:, 2] = [3, -1, 0.5, 0, 4, -2, np.nan]
    wanted = [10, 10, 10, -10, -10, -10, 10 if tracks else -10]
    with trireme.Session(data) as session:
        np.testing.assert_array_equal(session.run({"x0": x})["y"][:, 0], wanted)


TREE = {
    "nodes_treeids": [0] * 5,
    "nodes_nodeids": [0, 1, 2, 3, 4],
    "nodes_featureids": [0, 0, 1, 0, 0],
    "nodes_values": [0.5, 0.0, -1.0, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 3, 0, 0],
    "nodes_falsenodeids": [2, 0, 4, 0, 0],
    "target_treeids": [0] * 3,
    "target_nodeids": [1, 3, 4],
    "target_ids": [0] * 3,
    "target_weights": [1.0, 2.0, 3.0],
    "n_targets": 1,
}
BROKEN = {
    "reached twice": ({"nodes_truenodeids": [1, 0, 4, 0, 0]}, "tree 0 has 2 roots"),
    "in a ring": ({"nodes_truenodeids": [1, 0, 0, 0, 0]}, "does not lead to"),
    "a ring beside": (
        {"nodes_truenodeids": [1, 0, 2, 0, 0], "nodes_falsenodeids": [1, 0, 2, 0, 0]},
        "roots|two branches lead",
    ),
    "no such node": ({"nodes_truenodeids": [1, 0, 99, 3, 3]}, "roots|which is not there"),
    "unequal lists": ({"nodes_values": [0.5]}, "different lengths"),
    "unknown mode": (
        {"nodes_modes": ["BRANCH_NEAR", *TREE["nodes_modes"][1:]]},
        "mode 'NEAR' of a node is unknown",
    ),
    "unknown sum": ({"aggregate_function": "MEDIAN"}, "aggregate_function 'MEDIAN' is unknown"),
    "a feature too many": ({"nodes_featureids": [0, 0, 4, 0, 0]}, "outside the 4 of a row"),
    "a target too many": ({"target_ids": [0, 0, 1]}, "a target lies outside the 1"),
    "a weight too few": ({"target_weights": [1.0]}, "shorter|longer"),
}


@pytest.mark.parametrize(("changes", "why"), BROKEN.values(), ids=BROKEN)
def test_broken_trees_are_refused(changes, why):
    data = model("TreeEnsembleRegressor", ["float32"], {"y": "float32"}, TREE | changes)
    with pytest.raises(ConvertError, match=why):
        trireme.Session(data)


@pytest.mark.parametrize("op", ["CastMap", "DictVectorizer"])
def test_ops_on_maps_are_refused(op):
    with pytest.raises(ConvertError, match=rf"ai.onnx.ml.{op}"):
        trireme.Session(model(op, ["float32"], {"y": "float32"}, {}))
