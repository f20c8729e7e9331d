"""Small networks with random weights, in the forms that ONNX Runtime's optimisers look for."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SEED = 20261126
HIDDEN, HEADS, WORDS, PLACES = 64, 4, 50, 16


class Net:
    """A model under construction: `op` adds a node and returns the name of its output."""

    def __init__(self):
        self.rng = np.random.default_rng(SEED)
        self.nodes, self.weights = [], []

    def weight(self, *shape, scale=None):
        spread = scale or (2 / max(int(np.prod(shape[1:])), 1)) ** 0.5
        return self.constant((self.rng.standard_normal(shape) * spread).astype(np.float32))

    def constant(self, data):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def op(self, kind, *inputs, **attrs):
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attrs))
        return name

    def linear(self, x, depth, columns):
        y = self.op("MatMul", x, self.weight(depth, columns, scale=depth**-0.5))
        return self.op("Add", y, self.weight(columns, scale=0.1))

    def model(self, inputs, output, shape):
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "net", inputs, [y], self.weights)
        imports = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def conv_net():
    """Convolutions with every activation that is fused, a sum, pools and a classifier."""
    net = Net()

    def conv(x, columns, depth, kernel=3, groups=1, **attrs):
        pad = kernel // 2
        w = net.weight(columns, depth // groups, kernel, kernel)
        pads = [pad] * 4
        return net.op(
            "Conv", x, w, net.weight(columns, scale=0.1), pads=pads, group=groups, **attrs
        )

    x = net.op("Relu", conv("x", 16, 3, strides=[2, 2]))
    y = net.op("Clip", conv(x, 32, 16, 1), net.constant(np.float32(0)), net.constant(np.float32(6)))
    y = net.op("LeakyRelu", conv(y, 32, 32, groups=32), alpha=0.2)
    x = net.op("Relu", net.op("Add", conv(y, 16, 32, 1), x))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Sigmoid", conv(x, 32, 16))
    x = net.op("HardSigmoid", conv(x, 32, 32, 1), alpha=0.25, beta=0.5)
    x = net.op("AveragePool", x, kernel_shape=[2, 2])
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    x = net.op("Gemm", x, net.weight(10, 32), net.weight(10), transB=1)
    x = net.op("Softmax", x, axis=-1)
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])
    return net.model([image], x, [1, 10])


def bert(layers=2, is_open=False):
    """Embeddings, attention with a padding mask, and layers as PyTorch exported them.

    is_open: leave batch and seq open, which decide rows of positions and of token types
    """
    net = Net()
    mask = net.op("Unsqueeze", "mask", net.constant(np.array([1])))
    mask = net.op("Unsqueeze", mask, net.constant(np.array([2])))
    mask = net.op("Sub", net.constant(np.float32(1)), net.op("Cast", mask, to=TensorProto.FLOAT))
    mask = net.op("Mul", mask, net.constant(np.float32(-10000)))
    x = net.op("Gather", net.weight(WORDS, HIDDEN, scale=0.5), "ids")
    x = _with_places(net, x) if is_open else net.op("Add", x, _places(net))
    x = _norm(net, x)
    for _ in range(layers):
        x = _norm(net, net.op("Add", _attention(net, x, mask), x))
        y = net.linear(x, HIDDEN, 2 * HIDDEN)
        inner = net.op("Erf", net.op("Div", y, net.constant(np.float32(2**0.5))))
        y = net.op("Mul", y, net.op("Add", inner, net.constant(np.float32(1))))
        y = net.op("Mul", y, net.constant(np.float32(0.5)))
        x = _norm(net, net.op("Add", net.linear(y, 2 * HIDDEN, HIDDEN), x))
    names = (("ids", TensorProto.INT64), ("mask", TensorProto.INT64))
    shape = ["batch", "seq"] if is_open else [2, PLACES]
    inputs = [helper.make_tensor_value_info(n, type, shape) for n, type in names]
    return net.model(inputs, x, [*shape, HIDDEN])


def _places(net):
    return net.weight(1, PLACES, HIDDEN, scale=0.5)


def _with_places(net, x):
    """Rows of a token type and of positions added to words, as many as there are ids."""
    shape = net.op("Shape", "ids")
    types = net.op("Expand", net.constant(np.array([[1]])), shape)
    x = net.op("Add", x, net.op("Gather", net.weight(2, HIDDEN, scale=0.5), types))
    first, second = (net.constant(np.array([place])) for place in (0, 1))
    length = net.op("Slice", shape, second, net.constant(np.array([2])))
    return net.op("Add", x, net.op("Slice", _places(net), first, length, second))


def _norm(net, x):
    scale = net.constant(net.rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32))
    return net.op("LayerNormalization", x, scale, net.weight(HIDDEN, scale=0.1), epsilon=1e-12)


def _attention(net, x, mask):
    shape = net.constant(np.array([0, 0, HEADS, HIDDEN // HEADS]))
    parts = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        part = net.op("Reshape", net.linear(x, HIDDEN, HIDDEN), shape)
        parts.append(net.op("Transpose", part, perm=perm))
    q, k, v = parts
    scores = net.op(
        "Div", net.op("MatMul", q, k), net.constant(np.float32((HIDDEN // HEADS) ** 0.5))
    )
    shares = net.op("Softmax", net.op("Add", scores, mask), axis=-1)
    y = net.op("Transpose", net.op("MatMul", shares, v), perm=[0, 2, 1, 3])
    y = net.op("Reshape", y, net.constant(np.array([0, 0, HIDDEN])))
    return net.linear(y, HIDDEN, HIDDEN)


def inputs_of(model, rng):
    """Random inputs: words for ids, 0 and 1 for a mask, floats."""
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.name == "x" or value.type.tensor_type.elem_type == TensorProto.FLOAT:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
            continue
        feeds[value.name] = rng.integers(0, 2 if value.name == "mask" else WORDS, shape)
    if "mask" in feeds:
        feeds["mask"][:, 0] = 1
    return feeds
