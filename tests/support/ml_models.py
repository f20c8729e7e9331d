"""Random models of ai.onnx.ml, one op each, for ONNX Runtime beside us."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from tree_models import tree_attributes

from trireme.ops.trees import drawn_trees

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
ELEMENT = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "string": TensorProto.STRING,
}


def model(op, kinds, outputs, attrs, version=3, widths=(4,)):
    """An ONNX model of one op on inputs [rows, width] of some dtypes."""
    names = [f"x{k}" for k in range(len(kinds))]
    node = helper.make_node(op, names, list(outputs), domain="ai.onnx.ml", **attrs)
    inputs = [
        helper.make_tensor_value_info(name, ELEMENT[kind], ["rows", width])
        for name, kind, width in zip(names, kinds, widths, strict=True)
    ]
    made = [helper.make_tensor_value_info(k, ELEMENT[v], None) for k, v in outputs.items()]
    graph = helper.make_graph([node], op, inputs, made)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()


def labels(rng, count, texts):
    """Attributes of labels for some classes, their dtype, and the name for linear models."""
    if texts:
        return {"classlabels_strings": [f"class {k}" for k in range(count)]}, "string"
    return {"classlabels_int64s": rng.permutation(count * 3)[:count].tolist()}, "int64"


def linear_classifier(rng):
    classes = int(rng.integers(2, 5))
    rows = 1 if classes == 2 and rng.random() < 0.6 else classes
    named, kind = labels(rng, classes, rng.random() < 0.4)
    named = {key.replace("int64s", "ints"): value for key, value in named.items()}
    attrs = {
        "coefficients": rng.standard_normal(rows * 4).tolist(),
        "intercepts": rng.standard_normal(rows).tolist(),
        "post_transform": str(rng.choice(TRANSFORMS[:4])),
        "multi_class": int(rows > 1),
        **named,
    }
    dtype = str(rng.choice(["float32", "int64", "float64"]))
    return model("LinearClassifier", [dtype], {"label": kind, "scores": "float32"}, attrs, 1)


def linear_regressor(rng):
    targets = int(rng.integers(1, 4))
    attrs = {
        "coefficients": rng.standard_normal(targets * 4).tolist(),
        "targets": targets,
        "post_transform": str(rng.choice(TRANSFORMS[:4])) if targets > 1 else "NONE",
    }
    if rng.random() < 0.7:
        attrs["intercepts"] = rng.standard_normal(targets).tolist()
    return model("LinearRegressor", ["float32"], {"y": "float32"}, attrs, 1)


def tree_regressor(rng):
    targets, double = int(rng.integers(1, 4)), rng.random() < 0.3
    attrs = _trees(rng, targets, double)
    attrs["aggregate_function"] = str(rng.choice(["SUM", "AVERAGE", "MIN", "MAX"]))
    attrs["post_transform"] = str(rng.choice(TRANSFORMS[:4]))
    if rng.random() < 0.5 and not double:
        attrs["base_values"] = rng.standard_normal(targets).tolist()
    kind = "float64" if double else "float32"
    return model("TreeEnsembleRegressor", [kind], {"y": "float32"}, attrs)


def _trees(rng, targets, double=False):
    """Attributes of random trees, with every relation, for a regressor."""
    dtype = "float64" if double else "float32"
    count = int(rng.integers(targets, 30))
    trees = list(drawn_trees(rng, count, int(rng.integers(1, 6)), 4, targets, 1, 0.3))
    leaves = np.searchsorted(trees[5], np.arange(len(trees[6])), side="right")
    tree = np.searchsorted(trees[4], leaves, side="right") - 1
    trees[6] = (tree % targets).astype(np.int32)  # each tree is of one target, and all have some
    trees = [part.astype(dtype) if part.dtype == np.float32 else part for part in trees]
    trees[1] = np.round(trees[1] * 2) / 2  # thresholds that rows hit
    attrs = tree_attributes(trees, targets)
    relation = ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"]
    one = str(rng.choice(relation))
    attrs["nodes_modes"] = [
        mode if mode == "LEAF" else f"BRANCH_{one}" for mode in attrs["nodes_modes"]
    ]
    if rng.random() < 0.5:
        attrs["nodes_modes"] = [
            mode if mode == "LEAF" else f"BRANCH_{rng.choice(relation)}"
            for mode in attrs["nodes_modes"]
        ]
    return attrs


def tree_classifier(rng):
    classes = int(rng.choice([2, 2, 3, 4]))
    lone = classes == 2 and rng.random() < 0.6
    attrs = {
        key.replace("target_", "class_"): value
        for key, value in _trees(rng, classes).items()
        if key not in ("n_targets", "aggregate_function")
    }
    if lone:
        attrs["class_ids"] = [0] * len(attrs["class_ids"])
    if rng.random() < 0.4:
        attrs["class_weights"] = np.abs(attrs["class_weights"]).tolist()
    named, kind = labels(rng, classes, rng.random() < 0.4)
    if classes == 2 and not lone and kind == "int64":  # ONNX Runtime then returns 0 and 1
        named = {"classlabels_int64s": [0, 1]}
    attrs["post_transform"] = str(rng.choice(TRANSFORMS[:4]))
    if rng.random() < 0.4:
        count = int(rng.integers(1, 3)) if lone else classes
        attrs["base_values"] = rng.standard_normal(count).tolist()
    outputs = {"label": kind, "scores": "float32"}
    return model("TreeEnsembleClassifier", ["float32"], outputs, attrs | named)


def scaler(rng):
    size = int(rng.choice([1, 4]))
    attrs = {key: rng.standard_normal(size).tolist() for key in ("offset", "scale")}
    dtype = str(rng.choice(["float32", "int64", "float64"]))
    return model("Scaler", [dtype], {"y": "float32"}, attrs)


def normalizer(rng):
    attrs = {"norm": str(rng.choice(["MAX", "L1", "L2"]))}
    return model("Normalizer", [str(rng.choice(["float32", "int64"]))], {"y": "float32"}, attrs)


def imputer(rng):
    if rng.random() < 0.3:
        attrs = {"imputed_value_int64s": [7], "replaced_value_int64": 1}
        return model("Imputer", ["int64"], {"y": "int64"}, attrs)
    attrs = {"imputed_value_floats": rng.standard_normal(int(rng.choice([1, 4]))).tolist()}
    attrs["replaced_value_float"] = float(rng.choice([float("nan"), 0.5]))
    return model("Imputer", ["float32"], {"y": "float32"}, attrs)


def binarizer(rng):
    return model("Binarizer", ["float32"], {"y": "float32"}, {"threshold": 0.5})


def feature_vectorizer(rng):
    attrs = {"inputdimensions": [4, 2]}
    kind = str(rng.choice(["float32", "int64"]))
    return model("FeatureVectorizer", [kind] * 2, {"y": "float32"}, attrs, widths=(4, 2))


def one_hot_encoder(rng):
    kind = str(rng.choice(["int64", "string", "float32"]))
    cats = {"cats_int64s": [0, -1, 2, 1]}
    if kind == "string":
        cats = {"cats_strings": ["b", "a", "d"]}
    return model("OneHotEncoder", [kind], {"y": "float32"}, {"zeros": 1, **cats})


def label_encoder(rng):
    keys = {
        "string": {"keys_strings": ["a", "c", "b"]},
        "int64": {"keys_int64s": [2, 0, -1]},
        "float32": {"keys_floats": [0.5, -1.0, 0.0]},
    }
    values = {
        "string": {"values_strings": ["x", "y", "z"], "default_string": "other"},
        "int64": {"values_int64s": [5, 6, 7], "default_int64": -3},
        "float32": {"values_floats": [0.1, 0.2, 0.3], "default_float": 9.0},
    }
    pairs = ["string int64", "int64 string", "string float32", "float32 string", "int64 float32"]
    kind, made = str(rng.choice([*pairs, "string string", "int64 int64"])).split()
    return model("LabelEncoder", [kind], {"y": made}, keys[kind] | values[made])


def category_mapper(rng):
    attrs = {"cats_strings": ["a", "b"], "cats_int64s": [2, 0]}
    kind, made = [("string", "int64"), ("int64", "string")][int(rng.integers(2))]
    return model("CategoryMapper", [kind], {"y": made}, attrs, 1)


def svm_regressor(rng):
    kind, count = str(rng.choice(["LINEAR", "POLY", "RBF", "SIGMOID"])), 5
    attrs = {
        "kernel_type": kind,
        "kernel_params": [0.3, 0.1, 2.0],
        "support_vectors": rng.standard_normal(count * 4).tolist(),
        "n_supports": count,
        "coefficients": rng.standard_normal(count).tolist(),
        "rho": [0.2],
        "one_class": int(rng.random() < 0.3),
    }
    return model("SVMRegressor", ["float32"], {"y": "float32"}, attrs, 1)


def svm_classifier(rng):
    classes = int(rng.integers(2, 5))
    sizes = rng.integers(1, 4, classes).tolist()
    pairs, vectors = classes * (classes - 1) // 2, sum(sizes)
    named, kind = labels(rng, classes, rng.random() < 0.4)
    named = {key.replace("int64s", "ints"): value for key, value in named.items()}
    attrs = {
        "kernel_type": str(rng.choice(["LINEAR", "POLY", "RBF", "SIGMOID"])),
        "kernel_params": [0.3, 0.1, 2.0],
        "support_vectors": rng.standard_normal(vectors * 4).tolist(),
        "vectors_per_class": sizes,
        "coefficients": rng.standard_normal((classes - 1) * vectors).tolist(),
        "rho": rng.standard_normal(pairs).tolist(),
        "post_transform": str(rng.choice(["NONE", "LOGISTIC", "SOFTMAX"])),
        **named,
    }
    if rng.random() < 0.5:
        attrs |= {key: rng.standard_normal(pairs).tolist() for key in ("prob_a", "prob_b")}
    outputs = {"label": kind, "scores": "float32"}
    return model("SVMClassifier", ["float32"], outputs, attrs, 1)


MAKERS = {
    make.__name__: make
    for make in (
        binarizer,
        category_mapper,
        feature_vectorizer,
        imputer,
        label_encoder,
        linear_classifier,
        linear_regressor,
        normalizer,
        one_hot_encoder,
        scaler,
        svm_classifier,
        svm_regressor,
        tree_classifier,
        tree_regressor,
    )
}


def feeds(rng, data, rows):
    """Rows for a model: numbers with values that thresholds and keys hit, NaN, and strings."""
    import onnx

    made = {}
    for value in onnx.load_from_string(data).graph.input:
        kind = value.type.tensor_type.elem_type
        shape = rows, value.type.tensor_type.shape.dim[1].dim_value
        if kind == TensorProto.STRING:
            made[value.name] = rng.choice(["a", "b", "c", "?"], shape).astype(object)
        elif kind == TensorProto.INT64:
            made[value.name] = rng.integers(-2, 3, shape)
        else:
            x = np.round(rng.standard_normal(shape) * 2) / 2
            made[value.name] = x.astype(np.float64 if kind == TensorProto.DOUBLE else np.float32)
    return made


def with_holes(rng, fed):
    """The same with NaN among the floats."""
    return {
        name: np.where(rng.random(x.shape) < 0.2, np.nan, x).astype(x.dtype)
        if x.dtype.kind == "f"
        else x
        for name, x in fed.items()
    }


__all__ = ["MAKERS", "feeds", "model", "numpy_helper", "with_holes"]
