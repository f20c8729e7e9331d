"""Decoders whose steps are one loop of the graph: caches of keys and values are carried values.

`decode_loop(...)` gives a model like GPT-2 of random weights. Inputs are n (the most steps), stop
(the step after which it ends), token0 [1,1] and the first caches; outputs are the last token, the
last caches and ids [steps,1,1].
"""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper

KINDS = ("concat", "scatter_nd", "scatter_elements")
"""How a step writes keys and values: it makes caches longer, or writes into caches of a fixed size
and masks what is not written yet."""
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info = helper.make_tensor_value_info


@dataclass(frozen=True)
class Sizes:
    """A decoder: layers, heads, the depth of a head, words, and the most steps."""

    layers: int = 2
    heads: int = 4
    depth: int = 16
    words: int = 64
    room: int = 512

    @property
    def width(self):
        """Elements of a hidden row."""
        return self.heads * self.depth


class _Decoder:
    """Collects the nodes of a step, the weights, and the caches: names before and after."""

    def __init__(self, sizes, kind, seed):
        self.sizes, self.kind = sizes, kind
        self.nodes, self.caches = [], []
        self._rng = np.random.default_rng(seed)
        heads = np.arange(sizes.heads).reshape(1, -1, 1, 1)
        self.weights = {
            "split": np.array([1, 1, sizes.heads, sizes.depth]),
            "joined": np.array([1, 1, sizes.width]),
            "one": np.array([1]),
            "row": np.array([1, sizes.heads, 1, sizes.depth]),
            "each_head": np.array([1, sizes.heads, 1, 1]),
            "heads": np.concatenate([np.zeros_like(heads), heads], -1),
            "places": np.arange(sizes.room),
            "scale": np.array(sizes.depth**-0.5, np.float32),
            "far": np.array(-1e9, np.float32),
            "none": np.array(0, np.float32),
        }

    def add(self, op, *inputs, out="", **attrs):
        """Add a node of one output; return the output's name."""
        name = out or f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        return name

    def weight(self, name, *shape):
        """Add a weight; return its name."""
        scale = shape[-2] ** -0.5 if len(shape) > 1 else 1.0
        self.weights[name] = (self._rng.standard_normal(shape) * scale).astype(np.float32)
        return name

    def step(self):
        """Add the nodes of a step."""
        sizes, add, weight = self.sizes, self.add, self.weight
        nth = add("Reshape", "i", "one")
        x = add("Gather", weight("embedding", sizes.words, sizes.width), "token")
        x = add("Add", x, add("Gather", weight("position", sizes.room, sizes.width), nth))
        mask = None
        if self.kind != "concat":
            mask = add("Where", add("Greater", "places", "i"), "far", "none")
        for k in range(sizes.layers):
            x = self._layer(k, x, mask)
        scores = add("MatMul", self._norm("end", x), weight("words", sizes.width, sizes.words))
        add("ArgMax", scores, axis=-1, keepdims=0, out="next")
        add("Identity", "next", out="id")
        add("Less", "i", "stop", out="more")

    def _norm(self, name, x):
        width = self.sizes.width
        scale, bias = self.weight(f"{name} scale", width), self.weight(f"{name} bias", width)
        return self.add("LayerNormalization", x, scale, bias, axis=-1)

    def _layer(self, k, x, mask):
        add, weight, width = self.add, self.weight, self.sizes.width
        y = self._norm(f"first {k}", x)
        query, key, value = (self._heads(f"{name} {k}", y) for name in ("query", "key", "value"))
        keys = add("Transpose", self._cache(f"keys {k}", key), perm=[0, 1, 3, 2])
        scores = add("Mul", add("MatMul", query, keys), "scale")
        scores = scores if mask is None else add("Add", scores, mask)
        shares = add("Softmax", scores, axis=-1)
        mixed = add("MatMul", shares, self._cache(f"values {k}", value))
        mixed = add("Reshape", add("Transpose", mixed, perm=[0, 2, 1, 3]), "joined")
        x = add("Add", x, add("MatMul", mixed, weight(f"mix {k}", width, width)))
        wide = add("MatMul", self._norm(f"second {k}", x), weight(f"up {k}", width, 4 * width))
        return add(
            "Add", x, add("MatMul", add("Gelu", wide), weight(f"down {k}", 4 * width, width))
        )

    def _heads(self, name, x):
        y = self.add("MatMul", x, self.weight(name, self.sizes.width, self.sizes.width))
        return self.add("Transpose", self.add("Reshape", y, "split"), perm=[0, 2, 1, 3])

    def _cache(self, name, new):
        """Add what writes a row of each head into a cache; return the cache after."""
        add, made = self.add, f"{name} after"
        self.caches.append((name, made))
        if self.kind == "concat":
            return add("Concat", name, new, axis=2, out=made)
        nth = add("Reshape", "i", "one")
        if self.kind == "scatter_elements":
            return add("ScatterElements", name, add("Expand", nth, "row"), new, axis=2, out=made)
        at = add("Concat", "heads", add("Expand", nth, "each_head"), axis=-1)
        return add("ScatterND", name, at, new, out=made)


def decode_loop(sizes, kind, seed=0):
    """Return the model, as bytes."""
    one = _Decoder(sizes, kind, seed)
    one.step()

    def cache(name, rows):
        rows = rows if kind == "concat" else sizes.room
        return info(name, F32, [1, sizes.heads, rows, sizes.depth])

    token, index = [1, 1], info("i", I64, [])
    before = [cache(old, f"rows of {old}") for old, _ in one.caches]
    after = [cache(new, f"rows of {new}") for _, new in one.caches]
    turn = helper.make_graph(
        one.nodes,
        "step",
        [index, info("going", BOOL, []), info("token", I64, token), *before],
        [info("more", BOOL, []), info("next", I64, token), *after, info("id", I64, token)],
    )
    firsts, lasts = ([f"{which} {old}" for old, _ in one.caches] for which in ("first", "last"))
    loop = helper.make_node(
        "Loop", ["n", "", "token0", *firsts], ["token9", *lasts, "ids"], body=turn
    )
    graph = helper.make_graph(
        [loop],
        "decoder",
        [
            *(info(name, I64, []) for name in ("n", "stop")),
            info("token0", I64, token),
            *(cache(name, "past") for name in firsts),
        ],
        [
            info("token9", I64, token),
            *(cache(name, "rows") for name in lasts),
            info("ids", I64, ["steps", *token]),
        ],
        [numpy_helper.from_array(array, name) for name, array in one.weights.items()],
    )
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def decode_feeds(sizes, kind, steps, past=1, stop=1 << 40):
    """Return feeds for so many steps; past: rows that caches which grow have before."""
    rng = np.random.default_rng(past)
    fed = {"n": np.array(steps), "stop": np.array(stop), "token0": np.array([[1]])}
    for k in range(sizes.layers):
        for name in ("keys", "values"):
            if kind == "concat":
                shape = (1, sizes.heads, past, sizes.depth)
                fed[f"first {name} {k}"] = rng.standard_normal(shape).astype(np.float32)
            else:
                shape = (1, sizes.heads, sizes.room, sizes.depth)
                fed[f"first {name} {k}"] = np.zeros(shape, np.float32)
    return fed
