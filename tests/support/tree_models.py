"""Samples of our ops as ops of ai.onnx.ml: trees, categories, pairs of classes."""

import numpy as np
from onnx import TensorProto, numpy_helper

SUMS = {"sum": "SUM", "min": "MIN", "max": "MAX"}


def tree_attributes(inputs, num_targets, aggregate="sum"):
    """The attributes of a TreeEnsembleRegressor, for trees whose nodes follow their roots."""
    features, thresholds, branches, missing, roots, ends, targets, weights = inputs
    tree = np.searchsorted(roots, np.arange(len(features)), side="right") - 1
    number = np.arange(len(features)) - roots[tree]
    is_leaf = branches[:, 0] == np.arange(len(features))
    owner = np.repeat(np.arange(len(features)), np.diff(ends, prepend=0))
    inner = np.where(is_leaf[:, None], 0, branches - roots[tree][:, None])
    made = {
        "nodes_treeids": tree.tolist(),
        "nodes_nodeids": number.tolist(),
        "nodes_featureids": features.tolist(),
        "nodes_modes": ["LEAF" if leaf else "BRANCH_LEQ" for leaf in is_leaf],
        "nodes_truenodeids": inner[:, 0].tolist(),
        "nodes_falsenodeids": inner[:, 1].tolist(),
        "nodes_missing_value_tracks_true": missing.astype(int).tolist(),
        "target_treeids": tree[owner].tolist(),
        "target_nodeids": number[owner].tolist(),
        "target_ids": targets.tolist(),
        "n_targets": num_targets,
        "aggregate_function": SUMS[aggregate],
    }
    numbers = {"nodes_values": thresholds, "target_weights": weights}
    for name, array in numbers.items():
        if array.dtype == np.float64:
            made[f"{name}_as_tensor"] = numpy_helper.from_array(array, name)
        else:
            made[name] = array.tolist()
    return made


def _tree_ensemble(model, attrs):
    *trees, weights = [model.feeds.pop(name) for name in model.inputs[1:]]
    given = tree_attributes((*trees, weights), **attrs)
    y = model.add("TreeEnsembleRegressor", model.inputs[:1], domain="ai.onnx.ml", **given)
    return [y if weights.dtype == np.float32 else model.add("Cast", [y], to=TensorProto.DOUBLE)]


def _pair_probabilities(model, attrs):
    """A support vector for each pair, of its first class; its sum is the logit of the pair."""
    classes = attrs["classes"]
    first, second = np.triu_indices(classes, 1)
    weights = np.zeros((classes - 1, len(first)))
    weights[second - 1, range(len(first))] = 1
    rest = model.add("Sub", [model.constant(np.float32(1)), model.inputs[0]])
    logit = model.add("Log", [model.add("Div", [model.inputs[0], rest])])
    svm = {
        "classlabels_ints": range(classes),
        "coefficients": weights.reshape(-1).tolist(),
        "kernel_type": "LINEAR",
        "kernel_params": [0.0, 0.0, 0.0],
        "prob_a": [-1.0] * len(first),
        "prob_b": [0.0] * len(first),
        "rho": [0.0] * len(first),
        "support_vectors": np.eye(len(first)).reshape(-1).tolist(),
        "vectors_per_class": np.bincount(first, minlength=classes).tolist(),
    }
    return [model.add("SVMClassifier", [logit], 2, domain="ai.onnx.ml", **svm)[1]]


def _category_index(model, attrs):
    keys = model.feeds.pop("x1")
    tensors = {"keys": keys, "values": np.arange(len(keys)), "default": np.array([-1])}
    given = {f"{name}_tensor": numpy_helper.from_array(data) for name, data in tensors.items()}
    return [model.add("LabelEncoder", ["x0"], domain="ai.onnx.ml", **given)]


ML_MAKERS = {
    "tree_ensemble": _tree_ensemble,
    "category_index": _category_index,
    "pair_probabilities": _pair_probabilities,
}
