"""Map each ONNX op to an op of trireme.

By default the op is the one of the same name in snake_case, with the same inputs and attributes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trireme.converters.onnx import integer_products, quantized, window
from trireme.converters.onnx.scope import NodeUse
from trireme.converters.onnx.squeeze import squeeze
from trireme.converters.onnx.tensors import dtype_of
from trireme.ir.op import Attr, get_op, has_op
from trireme.support.records import dataclass

Rule = Callable[[NodeUse], Sequence[int | None]]


@dataclass(frozen=True)
class OpEntry:
    """The conversion of an ONNX op, and the trireme op that it makes ("" for none)."""

    op: str
    rule: Rule


_NAMES = {
    "MatMul": "matmul",
    "PRelu": "prelu",
    "IsNaN": "is_nan",
    "Col2Im": "col2im",
    "SwiGLU": "swiglu",
    "TfIdfVectorizer": "tf_idf_vectorizer",
    "FusedMatMul": "matmul",
    "Scatter": "scatter_elements",
}

_CONSTANTS = {
    "value_float": "float32",
    "value_floats": "float32",
    "value_int": "int64",
    "value_ints": "int64",
    "value_string": "object",
    "value_strings": "object",
}


def our_name(op: str) -> str:
    """Return the snake_case name of an ONNX op: LayerNormalization -> layer_normalization."""
    return _NAMES.get(op) or snake(op)


def snake(name: str) -> str:
    """Return a name of ONNX in snake_case: ceilMode or CeilMode -> ceil_mode."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return words.lower()


def attributes(op: str, given: Mapping[str, Any], drop: Sequence[str] = ()) -> dict[str, Any]:
    """Return ONNX attributes in trireme's form: snake_case, dtypes by name, NCHW."""
    known = get_op(op).attrs
    attrs: dict[str, Any] = {}
    for key, value in given.items():
        if key not in drop:
            name = snake(key)
            attrs[name] = _fit(known[name], value) if name in known else value
    layout = known.get("layout")
    if layout is not None and "NCHW" in layout.choices:
        attrs.setdefault("layout", "NCHW")
    return attrs


def _fit(attr: Attr, value: Any) -> Any:
    if attr.kind == "str" and isinstance(value, int):
        return dtype_of(value, "attribute") if value else attr.default
    return bool(value) if attr.kind == "bool" else value


def straight(op: str = "", *, drop: Sequence[str] = (), **fixed: Any) -> OpEntry:
    """Return the entry of an op with other names only."""

    def rule(use: NodeUse) -> Sequence[int]:
        name = op or our_name(use.op)
        attrs = attributes(name, use.attrs, drop) | fixed
        return use.add_node(name, use.inputs, attrs, len(use.outputs))

    return OpEntry(op, rule)


def alias(use: NodeUse) -> Sequence[int]:
    """Identity: the output is the input, under another name."""
    return (use.need(0),)


def dropout(use: NodeUse) -> Sequence[int]:
    """Dropout at inference: the input, and a mask that keeps everything."""
    ratio, training = use.array(1), use.array(2)
    never = use.input(2) is None or (training is not None and not training.any())
    if not never and (ratio is None or ratio.any()):
        raise use.error("dropout in training mode is not supported")
    if len(use.outputs) == 1:
        return (use.need(0),)
    kept = use.constant(True, "bool" if use.version >= 10 else use.type().dtype)
    return use.need(0), use.add("expand", kept, use.add("shape", use.need(0)))


def softmax(use: NodeUse) -> Sequence[int]:
    """Softmax and related ops; an input that an adapter flattened gets its shape back."""
    restore = use.take("restore")
    y = use.add(our_name(use.op), use.need(0), **use.attrs)
    return (y if restore is None else use.add("reshape", y, restore, allowzero=1),)


def constant_of_shape(use: NodeUse) -> Sequence[int]:
    """ConstantOfShape: a constant where the shape is known, or a scalar to expand at run time."""
    value = use.take("value")
    data = np.zeros((), np.float32) if value is None else value.reshape(())
    shape = use.array(0)
    if shape is not None and (shape >= 0).all():
        nbytes = math.prod(int(dim) for dim in shape) * data.itemsize
        if use.scope.common.may_fill(nbytes):
            return (use.constant(np.full(tuple(shape), data)),)
    return (use.add("expand", use.constant(data), use.need(0)),)


def resize(use: NodeUse) -> Sequence[int]:
    """Resize: empty tensors stand for inputs left out."""
    for position in range(1, len(use.inputs)):
        data = use.array(position)
        if data is not None and not data.size:
            use.inputs[position] = None
    if use.attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        use.set_input(1, None)
    return use.add_node("resize", use.inputs, attributes("resize", use.attrs))


def _spatial_axes(use: NodeUse) -> int:
    """Return all axes but the first two; the graph counts them where the rank is known late."""
    type = use.type()
    if type.has_rank:
        return use.constant(range(2, len(type.shape)), "int64")
    rank = use.add("size", use.add("shape", use.need(0)))
    return use.add("range", use.constant(2, "int64"), rank, use.constant(1, "int64"))


def global_pool(op: str) -> OpEntry:
    """Return the entry of a global pool: a reduction over the spatial axes."""

    def rule(use: NodeUse) -> Sequence[int]:
        return (use.add(op, use.need(0), _spatial_axes(use), keepdims=1, noop_with_empty_axes=1),)

    return OpEntry(op, rule)


def global_lp_pool(use: NodeUse) -> Sequence[int]:
    """GlobalLpPool: the norm over the spatial axes."""
    norm = {1: "reduce_l1", 2: "reduce_l2"}.get(use.take("p", 2))
    if norm is None:
        raise use.error("a p other than 1 and 2 is not supported")
    return (use.add(norm, use.need(0), _spatial_axes(use), keepdims=1, noop_with_empty_axes=1),)


def transpose_quick(use: NodeUse) -> Sequence[int]:
    """Transpose with an explicit perm."""
    perm = use.attrs.get("perm") or tuple(reversed(range(len(use.type().shape))))
    return (use.add("transpose", use.need(0), perm=perm),)


def has_element(use: NodeUse) -> Sequence[int]:
    """OptionalHasElement: a constant, since presence is known at conversion."""
    return (use.constant(use.input(0) is not None),)


def rms_normalization(use: NodeUse) -> Sequence[int]:
    """SimplifiedLayerNormalization: what ONNX Runtime wrote before ONNX had RMSNormalization."""
    if len(use.outputs) > 1:
        raise use.error("the output inv_std_var is not supported")
    attrs = {"axis": use.attrs.get("axis", -1), "epsilon": use.attrs.get("epsilon", 1e-5)}
    return (use.add("rms_normalization", use.need(0), use.need(1), **attrs),)


def constant(use: NodeUse) -> Sequence[int]:
    """Constant in all its forms."""
    if len(use.attrs) != 1:
        raise use.error(f"has {len(use.attrs)} values, expected one")
    ((kind, value),) = use.attrs.items()
    dtype = _CONSTANTS.get(kind)
    if kind not in ("value", "sparse_value", *_CONSTANTS):
        raise use.error(f"unknown form {kind}")
    return (use.constant(value, dtype),)


TABLE: dict[str, OpEntry] = {
    "AveragePool": OpEntry("average_pool", window.pool("average_pool")),
    "Constant": OpEntry("", constant),
    "ConstantOfShape": OpEntry("", constant_of_shape),
    "Conv": OpEntry("conv", window.conv),
    "ConvInteger": OpEntry("conv", integer_products.conv_integer),
    "ConvTranspose": OpEntry("conv_transpose", window.conv_transpose),
    "Dropout": OpEntry("", dropout),
    "DynamicQuantizeLinear": OpEntry(
        "dynamic_quantize_linear", integer_products.dynamic_quantize_linear
    ),
    "GlobalAveragePool": global_pool("reduce_mean"),
    "GlobalLpPool": OpEntry("reduce_l2", global_lp_pool),
    "GlobalMaxPool": global_pool("reduce_max"),
    "GroupNormalization": straight("group_normalization", drop=("stash_type",)),
    "Hardmax": OpEntry("hardmax", softmax),
    "Identity": OpEntry("", alias),
    "LayerNormalization": straight("layer_normalization"),
    "LogSoftmax": OpEntry("log_softmax", softmax),
    "MatMulInteger": OpEntry("matmul", integer_products.matmul_integer),
    "Optional": OpEntry("", alias),
    "OptionalGetElement": OpEntry("", alias),
    "OptionalHasElement": OpEntry("", has_element),
    "QuantizeLinear": OpEntry(
        "quantize_linear", quantized.noting(straight("quantize_linear").rule)
    ),
    "QLinearConv": OpEntry("conv", quantized.qlinear_conv),
    "QLinearMatMul": OpEntry("matmul", quantized.qlinear_matmul),
    "LpPool": OpEntry("lp_pool", window.pool("lp_pool")),
    "MaxPool": OpEntry("max_pool", window.pool("max_pool")),
    "RMSNormalization": straight("rms_normalization", drop=("stash_type",)),
    "Resize": OpEntry("resize", resize),
    "SimplifiedLayerNormalization": OpEntry("rms_normalization", rms_normalization),
    "Softmax": OpEntry("softmax", softmax),
    "Squeeze": OpEntry("squeeze", squeeze),
    "Transpose": OpEntry("transpose", transpose_quick),
    "Upsample": OpEntry("resize", resize),
}
for _op in ("Flatten", "MaxPool", "Pad", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"):
    _entry = TABLE.get(_op) or straight(our_name(_op))
    TABLE[_op] = OpEntry(_entry.op, quantized.on_stored(_entry.rule))


def entry_of(op: str) -> OpEntry | None:
    """Return the entry of an op of the default domain; None for an unsupported op."""
    entry = TABLE.get(op)
    if entry is None:
        name = our_name(op)
        return straight(name) if has_op(name) else None
    return entry if not entry.op or has_op(entry.op) else None
