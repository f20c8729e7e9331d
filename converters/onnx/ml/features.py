"""Rules for the ops of ai.onnx.ml that prepare features and encode categories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.converters.onnx.ml.scores import matrix
from trireme.converters.onnx.scope import NodeUse
from trireme.support.dtypes import Array


def array_feature_extractor(use: NodeUse) -> Sequence[int]:
    """ArrayFeatureExtractor(x, places): columns along the last axis; a vector is one row."""
    x = use.need(0)
    if len(use.type(0).shape) == 1:
        x = use.add("unsqueeze", x, use.constant([0], "int64"))
    flat = use.add("reshape", use.need(1), use.constant([-1], "int64"))
    return (use.add("gather", x, flat, axis=-1),)


def binarizer(use: NodeUse) -> Sequence[int]:
    """Binarizer(x): 1 where x is above the threshold, else 0."""
    dtype = use.type(0).dtype
    larger = use.add("greater", use.need(0), use.constant(use.take("threshold", 0.0), dtype))
    return (use.add("cast", larger, to=dtype),)


def feature_vectorizer(use: NodeUse) -> Sequence[int]:
    """FeatureVectorizer(xs): the first columns of each, side by side, as float32."""
    sizes = use.take("inputdimensions")
    parts = []
    for position in range(len(use.inputs)):
        x = use.need(position)
        if len(use.type(position).shape) == 1:
            x = use.add("unsqueeze", x, use.constant([1], "int64"))
        wide = use.scope.builder.type(x).shape[1]
        size = sizes[position] if sizes else wide
        if isinstance(wide, int) and isinstance(size, int) and size > wide:
            raise use.error(f"input {position} has {wide} columns, and {size} are asked for")
        if size != wide:
            ends = [use.constant([at], "int64") for at in (0, size, 1)]
            x = use.add("slice", x, *ends)
        parts.append(use.add("cast", x, to="float32"))
    return (use.add("concat", *parts, axis=1),)


def imputer(use: NodeUse) -> Sequence[int]:
    """Imputer(x): a replaced value becomes the imputed one of its column."""
    dtype = use.type(0).dtype
    kind = "int64" if dtype.startswith("int") else "float"
    values = use.take(f"imputed_value_{kind}s")
    replaced = use.take(f"replaced_value_{kind}", 0)
    if not values:
        raise use.error(f"it has no imputed values of {kind}")
    x = use.need(0)
    if isinstance(replaced, float) and math.isnan(replaced):
        is_wrong = use.add("is_nan", x)
    else:
        is_wrong = use.add("equal", x, use.constant(replaced, dtype))
    return (use.add("where", is_wrong, use.constant(values, dtype), x),)


def normalizer(use: NodeUse) -> Sequence[int]:
    """Normalizer(x): rows divided by their largest element, their sum of sizes, or their length."""
    x, norm = matrix(use), use.take("norm", "MAX")
    last = use.constant([1], "int64")
    if norm == "MAX":
        size = use.add("reduce_max", x, last)
    elif norm == "L1":
        size = use.add("reduce_l1", x, last)
    elif norm == "L2":
        size = use.add("reduce_l2", x, last)
    else:
        raise use.error(f"norm {norm!r} is unknown")
    is_none = use.add("equal", size, use.constant(0.0, "float32"))
    size = use.add("where", is_none, use.constant(1.0, "float32"), size)
    made = use.add("div", x, size)
    return (made if len(use.type(0).shape) > 1 else use.add("squeeze", made, use.constant([0])),)


def scaler(use: NodeUse) -> Sequence[int]:
    """Scaler(x): (x - offset) * scale, in float32."""
    x = use.add("cast", use.need(0), to="float32")
    offset, scale = use.take("offset"), use.take("scale")
    if offset:
        x = use.add("sub", x, use.constant(offset, "float32"))
    return (use.add("mul", x, use.constant(scale, "float32")) if scale else x,)


def one_hot_encoder(use: NodeUse) -> Sequence[int]:
    """OneHotEncoder(x): a new last axis of float32, 1 at the category; zeros = 0 refuses others."""
    texts, numbers = use.take("cats_strings"), use.take("cats_int64s")
    if not texts and not numbers:
        raise use.error("it has no categories")
    x = use.need(0)
    if not texts:
        x = use.add("cast", x, to="int64")
    keys = np.array(texts, object) if texts else np.array(numbers, np.int64)
    strict = not use.take("zeros", 1)
    place = use.add("category_index", x, use.constant(keys), strict=strict)
    wide = use.add("unsqueeze", place, use.constant([-1], "int64"))
    same = use.add("equal", wide, use.constant(np.arange(len(keys))))
    return (use.add("cast", same, to="float32"),)


def category_mapper(use: NodeUse) -> Sequence[int]:
    """CategoryMapper(x): numbers of strings, or strings of numbers."""
    texts, numbers = use.take("cats_strings") or (), use.take("cats_int64s") or ()
    if len(texts) != len(numbers):
        raise use.error(f"it maps {len(texts)} strings and {len(numbers)} numbers")
    names, codes = np.array(texts, object), np.array(numbers, np.int64)
    if use.type(0).dtype == "string":
        return (_mapped(use, names, codes, np.int64(use.take("default_int64", -1))),)
    return (_mapped(use, codes, names, use.take("default_string", "_Unused")),)


_KINDS = {"strings": "object", "int64s": "int64", "floats": "float32"}
_DEFAULTS: dict[str, Any] = {"strings": "_Unused", "int64s": -1, "floats": -0.0}


def label_encoder(use: NodeUse) -> Sequence[int]:
    """LabelEncoder(x): the value of each key, or the default."""
    if use.version == 1:
        classes = np.array(use.take("classes_strings") or (), object)
        places = np.arange(len(classes))
        if use.type(0).dtype == "string":
            return (_mapped(use, classes, places, np.int64(use.take("default_int64", -1))),)
        return (_mapped(use, places, classes, use.take("default_string", "_Unused")),)
    keys, _ = _listed(use, "keys")
    values, kind = _listed(use, "values")
    if len(keys) != len(values):
        raise use.error(f"it has {len(keys)} keys and {len(values)} values")
    given = use.take("default_tensor")
    if given is not None:
        default = given.reshape(-1)[0]
    else:
        fallback = _DEFAULTS.get(kind, 0 if values.dtype != object else "_Unused")
        default = use.take(f"default_{kind[:-1]}", fallback)
    return (_mapped(use, keys, values, default),)


def _listed(use: NodeUse, what: str) -> tuple[Array, str]:
    """Return keys or values, and the kind of attribute that gives them."""
    for kind, dtype in _KINDS.items():
        found = use.take(f"{what}_{kind}")
        if found:
            return np.array(found, dtype), kind
    tensor = use.take(f"{what}_tensor")
    if tensor is None:
        raise use.error(f"it has no {what}")
    return tensor.reshape(-1), ""


def _mapped(use: NodeUse, keys: Array, values: Array, default: Any) -> int:
    """Return the value of each element of x, by the key that it equals."""
    place = use.add("category_index", use.need(0), use.constant(keys))
    extended = np.concatenate([values, np.array([default], values.dtype)])
    return use.add("gather", use.constant(extended), place, axis=0)


def zip_map(use: NodeUse) -> Sequence[int]:
    """ZipMap(scores): the scores stay a tensor, whose columns are in the order of the labels."""
    return (use.need(0),)
