"""The same computation as a sample of an op, as a small ONNX model for an independent runtime.

`MAKERS` has a line for every op that ONNX has under another name, layout or form; an op without
one is the ONNX op of the same name in CamelCase with the same inputs and attributes.
"""

import numpy as np
import onnx
from onnx import TensorProto
from onnx_peer_model import ELEMENT, Model
from tree_models import ML_MAKERS


def camel(name):
    return "".join(part.title() for part in name.split("_"))


def channels_first(rank):
    return (0, rank - 1, *range(1, rank - 1))


def channels_last(rank):
    return (0, *range(2, rank), 1)


def activated(model, y, name):
    """Put the activation called `name` after y."""
    clip = {"relu6": (0, 6), "relu_n1_to_1": (-1, 1)}
    if name in clip:
        limits = [model.constant(np.float32(v)) for v in clip[name]]
        return model.add("Clip", [y, *limits])
    if name == "swish":
        return model.add("Mul", [y, model.add("Sigmoid", [y])])
    if name == "hard_sigmoid":
        return model.add("HardSigmoid", [y], alpha=1 / 6, beta=0.5)
    if name.startswith("gelu"):
        return model.add("Gelu", [y], approximate="tanh" if name == "gelu_tanh" else "none")
    return model.add(camel(name), [y]) if name else y


def rank_of(model, position=0):
    return model.feeds[f"x{position}"].ndim


def image_op(op_type, weights=0, count=1, **renamed):
    """A maker for an op with a layout: its image and first `weights` inputs are turned."""

    def make(model, attrs):
        rank, last = rank_of(model), attrs.pop("layout") == "NHWC"
        activation = attrs.pop("activation", "")
        attrs = {renamed.get(key, key): value for key, value in attrs.items()}
        operands = list(model.inputs)
        residual = operands.pop() if len(operands) == 4 and op_type == "Conv" else ""
        for i in range(1 + weights if last else 0):
            operands[i] = model.turned(operands[i], channels_first(rank))
        made = model.add(op_type, operands, count, **attrs)
        outputs = [made] if count == 1 else made
        if last:
            outputs = [model.turned(y, channels_last(rank)) for y in outputs]
        if residual:
            outputs[0] = model.add("Add", [outputs[0], residual])
        outputs[0] = activated(model, outputs[0], activation)
        return outputs[:1]

    return make


def arithmetic(op_type):
    def make(model, attrs):
        return [activated(model, model.add(op_type, model.inputs), attrs["activation"])]

    return make


def chain(*op_types):
    def make(model, attrs):
        y = model.inputs[0]
        for op_type in op_types:
            y = model.add(op_type, [y])
        return [y]

    return make


def _fully_connected(model, attrs):
    x, w, *rest = model.inputs
    y = model.add("MatMul", [x, model.add("Transpose", [w])])
    for addend in rest:
        y = model.add("Add", [y, addend]) if addend else y
    return [activated(model, y, attrs["activation"])]


def _concat(model, attrs):
    y = model.add("Concat", model.inputs, axis=attrs["axis"])
    return [activated(model, y, attrs["activation"])]


def _append_rows(model, attrs):
    buffer, length, rows = (model.feeds[f"x{k}"] for k in range(3))
    ends = len(length), len(length) + rows.shape[attrs["axis"]]
    first = _rows(model, 0, ends[0], attrs["axis"])
    last = _rows(model, ends[1], buffer.shape[attrs["axis"]], attrs["axis"])
    return [model.add("Concat", [first, model.inputs[2], last], axis=attrs["axis"])]


def _held_rows(model, attrs):
    count = len(model.feeds["x1"]) + model.feeds["x2"].shape[attrs["axis"]]
    return [_rows(model, 0, count, attrs["axis"])]


def _rows(model, first, last, axis):
    ends = [model.constant(np.array([end])) for end in (first, last, axis)]
    return model.add("Slice", [model.inputs[0], *ends])


def _split(model, attrs):
    count = attrs["num_outputs"] or model.feeds["x1"].size
    return model.add("Split", model.inputs, count, **attrs)


def _softmax(model, attrs):
    x = model.inputs[0]
    if attrs["beta"] != 1:
        x = model.add("Mul", [x, model.constant(np.float32(attrs["beta"]))])
    return [model.add("Softmax", [x], axis=attrs["axis"])]


def _cast(model, attrs):
    return [model.add("Cast", model.inputs, to=ELEMENT[attrs["to"]])]


def _not_equal(model, attrs):
    return [model.add("Not", [model.add("Equal", model.inputs)])]


def _squared_difference(model, attrs):
    d = model.add("Sub", model.inputs)
    return [model.add("Mul", [d, d])]


def _square(model, attrs):
    return [model.add("Mul", [model.inputs[0]] * 2)]


def _floor_div(model, attrs):
    a, b = (model.add("Cast", [x], to=TensorProto.DOUBLE) for x in model.inputs)
    zero = model.constant(np.float64(0))
    rest = model.add("Mod", [a, b], fmod=1)
    whole = model.add("Round", [model.add("Div", [model.add("Sub", [a, rest]), b])])
    signs = [model.add("Less", [x, zero]) for x in (rest, b)]
    apart = [model.add("Xor", signs), model.add("Not", [model.add("Equal", [rest, zero])])]
    below = model.add("Cast", [model.add("And", apart)], to=TensorProto.DOUBLE)
    by_zero = model.add("Equal", [b, zero])
    y = model.add("Where", [by_zero, model.add("Div", [a, b]), model.add("Sub", [whole, below])])
    dtype = onnx.helper.np_dtype_to_tensor_dtype(model.feeds["x0"].dtype)
    return [model.add("Cast", [y], to=dtype)]


def _mod(model, attrs):
    attrs.pop("zero")
    if not attrs["fmod"] and model.feeds["x0"].dtype.kind == "f":
        model.opset = onnx.defs.onnx_opset_version()
    return [model.add("Mod", model.inputs, **attrs)]


def _reverse(model, attrs):
    rank, y = rank_of(model), model.inputs[0]
    for axis in attrs["axes"]:
        numbers = (-1, -(1 << 40), axis % rank, -1)
        y = model.add("Slice", [y, *(model.constant(np.array([v])) for v in numbers)])
    return [y]


def _gemm(model, attrs):
    attrs["transA"], attrs["transB"] = attrs.pop("trans_a"), attrs.pop("trans_b")
    return [model.add("Gemm", model.inputs, **attrs)]


def _gather(model, attrs):
    batch, axis = attrs["batch_dims"], attrs["axis"]
    if not batch:
        return [model.add("Gather", model.inputs, axis=axis)]
    assert axis == batch, "GatherND gathers along the axis behind the batch"
    x, indices = model.inputs
    each = model.add("Unsqueeze", [indices, model.constant(np.array([-1]))])
    return [model.add("GatherND", [x, each], batch_dims=batch)]


def _clamp(low, high):
    def make(model, attrs):
        limits = [model.constant(np.float32(v)) for v in (low, high)]
        return [model.add("Clip", [*model.inputs, *limits])]

    return make


def _swish(model, attrs):
    scaled = model.add("Mul", [model.inputs[0], model.constant(np.float32(attrs["alpha"]))])
    return [model.add("Mul", [model.inputs[0], model.add("Sigmoid", [scaled])])]


def _layer_norm(model, attrs):
    return model.add(
        "LayerNormalization", model.inputs, 3, axis=attrs["axis"], epsilon=attrs["epsilon"]
    )[:1]


def _rms_norm(model, attrs):
    x, scale = model.inputs
    axes = model.constant(np.arange(attrs["axis"] % rank_of(model), rank_of(model)))
    mean = model.add("ReduceMean", [model.add("Mul", [x, x]), axes])
    epsilon = model.constant(np.float32(attrs["epsilon"]))
    root = model.add("Sqrt", [model.add("Add", [mean, epsilon])])
    return [model.add("Mul", [model.add("Div", [x, root]), scale])]


def _recurrent(op_type, outputs):
    return lambda model, attrs: model.add(
        op_type, model.inputs, outputs, **attrs | {"layout": None}
    )


def _batch_norm(model, attrs):
    last = attrs["layout"] == "NHWC" and rank_of(model) > 2
    x = model.turned(model.inputs[0], channels_first(rank_of(model))) if last else model.inputs[0]
    y = model.add("BatchNormalization", [x, *model.inputs[1:]], epsilon=attrs["epsilon"])
    return [model.turned(y, channels_last(rank_of(model))) if last else y]


def _atan2(model, attrs):
    """atan(a / b), shifted by a half turn of a's sign where b is negative."""
    a, b = model.inputs
    angle = model.add("Atan", [model.add("Div", [a, b])])
    turn = model.add("Mul", [model.add("Sign", [a]), model.constant(np.float32(np.pi))])
    behind = model.add("Less", [b, model.constant(np.float32(0))])
    return [model.add("Where", [behind, model.add("Add", [angle, turn]), angle])]


def _depth(op_type):
    def make(model, attrs):
        last = attrs["layout"] == "NHWC"
        x = model.turned(model.inputs[0], (0, 3, 1, 2)) if last else model.inputs[0]
        mode = {"mode": attrs["mode"]} if op_type == "DepthToSpace" else {}
        y = model.add(op_type, [x], blocksize=attrs["blocksize"], **mode)
        return [model.turned(y, (0, 2, 3, 1)) if last else y]

    return make


def _linear_quant(op_type):
    def make(model, attrs):
        return [model.add(op_type, model.inputs, axis=attrs["axis"])]

    return make


def _matmul_nbits(model, attrs):
    """ONNX Runtime's own op: scales in one row, zero points packed like the weights."""
    columns, blocks, nbytes = model.feeds["x1"].shape
    bits, depth = attrs["bits"], model.feeds["x0"].shape[-1]
    model.feeds["x2"] = model.feeds["x2"].reshape(-1)
    if "x3" in model.feeds:
        each = 8 // bits
        codes = np.pad(model.feeds["x3"], [(0, 0), (0, -blocks % each)])
        parts = codes.reshape(columns, -1, each) << (bits * np.arange(each, dtype=np.uint8))
        model.feeds["x3"] = np.bitwise_or.reduce(parts, -1).astype(np.uint8).reshape(-1)
    x, *rest = model.inputs  # ONNX Runtime packs constants; of other weights it ignores the level
    weights = [model.constant(model.feeds.pop(name)) if name else "" for name in rest]
    inputs = [x, *weights[:3], "", *weights[3:]]
    sizes = {"N": columns, "K": depth, **attrs}
    return [model.add("MatMulNBits", inputs, domain="com.microsoft", **sizes)]


def _blocks(model, attrs):
    """space_to_batch and batch_to_space by pad, reshape, transpose and slice."""
    x, block, edges = (model.feeds[name] for name in model.inputs)
    n, h, w, c = x.shape
    b, k = (int(v) for v in block)
    (top, bottom), (left, right) = edges.tolist()
    name = model.inputs[0]
    if model.op == "space_to_batch":
        pads = model.constant(np.array([0, top, left, 0, 0, bottom, right, 0]))
        name = model.add("Pad", [name, pads])
        h, w = h + top + bottom, w + left + right
        shape = model.constant(np.array([n, h // b, b, w // k, k, c]))
        split = model.turned(model.add("Reshape", [name, shape]), (2, 4, 0, 1, 3, 5))
        whole = model.constant(np.array([n * b * k, h // b, w // k, c]))
        return [model.add("Reshape", [split, whole])]
    shape = model.constant(np.array([b, k, n // (b * k), h, w, c]))
    split = model.turned(model.add("Reshape", [name, shape]), (2, 3, 0, 4, 1, 5))
    whole = model.constant(np.array([n // (b * k), h * b, w * k, c]))
    y = model.add("Reshape", [split, whole])
    numbers = ([top, left], [h * b - bottom, w * k - right], [1, 2])
    return [model.add("Slice", [y, *(model.constant(np.array(v)) for v in numbers)])]


def _reduce_bool(op_type):
    """any is the greatest and all the least of the integers that false and true are."""

    def make(model, attrs):
        x, axes = model.inputs
        y = model.add(op_type, [model.add("Cast", [x], to=TensorProto.INT32), axes], **attrs)
        return [model.add("Cast", [y], to=TensorProto.BOOL)]

    return make


def _bit_cast(model, attrs):
    model.opset = onnx.defs.onnx_opset_version()
    return [model.add("BitCast", model.inputs, to=ELEMENT[attrs["to"]])]


def _newest(op_type):
    def make(model, attrs):
        model.opset = onnx.defs.onnx_opset_version()
        return [model.add(op_type, model.inputs, **attrs)]

    return make


def _filled(model, attrs):
    value = attrs["value"]
    tensor = None if value is None else onnx.numpy_helper.from_array(value)
    return [model.add("ConstantOfShape", model.inputs, value=tensor)]


MAKERS = {
    "reduce_any": _reduce_bool("ReduceMax"),
    "reduce_all": _reduce_bool("ReduceMin"),
    "bit_cast": _bit_cast,
    "tensor_scatter": _newest("TensorScatter"),
    "unique": lambda model, attrs: model.add("Unique", model.inputs, 4, **attrs),
    "constant_of_shape": _filled,
    "cast_like": lambda model, attrs: [model.add("CastLike", model.inputs)],
    "top_k": lambda model, attrs: model.add("TopK", model.inputs, 2, **attrs),
    "add": arithmetic("Add"),
    "sub": arithmetic("Sub"),
    "mul": arithmetic("Mul"),
    "div": arithmetic("Div"),
    "append_rows": _append_rows,
    "held_rows": _held_rows,
    "concat": _concat,
    "split": _split,
    "softmax": _softmax,
    "cast": _cast,
    "not_equal": _not_equal,
    "squared_difference": _squared_difference,
    "square": _square,
    "floor_div": _floor_div,
    "mod": _mod,
    "reverse": _reverse,
    "gemm": _gemm,
    "rsqrt": chain("Sqrt", "Reciprocal"),
    "gather": _gather,
    "relu6": _clamp(0, 6),
    "relu_n1_to_1": _clamp(-1, 1),
    "swish": _swish,
    "conv": image_op("Conv", 1, groups="group"),
    "conv_transpose": image_op("ConvTranspose", 1, groups="group"),
    "max_pool": image_op("MaxPool", kernel="kernel_shape"),
    "average_pool": image_op("AveragePool", kernel="kernel_shape"),
    "lp_pool": image_op("LpPool", kernel="kernel_shape"),
    "fully_connected": _fully_connected,
    "layer_normalization": _layer_norm,
    "rms_normalization": _rms_norm,
    "batch_normalization": _batch_norm,
    "instance_normalization": image_op("InstanceNormalization"),
    "group_normalization": image_op("GroupNormalization"),
    "lrn": image_op("LRN"),
    "depth_to_space": _depth("DepthToSpace"),
    "space_to_depth": _depth("SpaceToDepth"),
    "quantize_linear": _linear_quant("QuantizeLinear"),
    "dequantize_linear": _linear_quant("DequantizeLinear"),
    "space_to_batch": _blocks,
    "batch_to_space": _blocks,
    "rnn": _recurrent("RNN", 2),
    "gru": _recurrent("GRU", 2),
    "lstm": _recurrent("LSTM", 3),
    "cum_prod": _newest("CumProd"),
    "atan2": _atan2,
    "matmul_nbits": _matmul_nbits,
    **ML_MAKERS,
    "dynamic_quantize_linear": lambda model, attrs: model.add(
        "DynamicQuantizeLinear", model.inputs, 3
    ),
}


ONNX_NAMES = {
    "is_nan": "IsNaN",
    "is_inf": "IsInf",
    "matmul": "MatMul",
    "gather_nd": "GatherND",
    "scatter_nd": "ScatterND",
    "prelu": "PRelu",
    "dft": "DFT",
    "stft": "STFT",
    "lp_normalization": "LpNormalization",
    "cum_sum": "CumSum",
}


def peer_model(op, sample, types):
    """The sample as an ONNX model: (ModelProto, feeds, number of outputs it has)."""
    model, attrs = Model(op.name, sample.inputs), op.bind(sample.attrs)
    if op.name in MAKERS:
        outputs = MAKERS[op.name](model, attrs)
    else:
        outputs = [model.add(ONNX_NAMES.get(op.name, camel(op.name)), model.inputs, **attrs)]
    return model.finish(outputs, types[: len(outputs)]), model.feeds, len(outputs)
