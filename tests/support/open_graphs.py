"""Random graphs over an input [n, seq, 6] whose first axes are open."""

import numpy as np

import trireme
from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret

WIDTH = 6


def constant(b, array):
    return b.constant("c", array)


def ints(b, *numbers):
    return constant(b, np.array(numbers, np.int64))


def grown(b, rng, x):
    """One more node after x [.., ..]; a value of any rank."""
    rank = len(b.type(x).shape)
    axis = int(rng.integers(rank)) if rank else 0
    last = b.type(x).shape[-1] if rank else 1
    which = int(rng.integers(14))
    if not rank or which == 0:
        return b.add("tanh", x)
    if which == 1:
        return b.add("softmax", x, axis=axis)
    if which == 2:
        perm = tuple(int(n) for n in rng.permutation(rank))
        return b.add("transpose", x, perm=perm)
    if which == 3:
        op = rng.choice(["reduce_sum", "reduce_max", "reduce_mean", "reduce_l2", "reduce_min"])
        return b.add(str(op), x, ints(b, axis), keepdims=int(rng.integers(2)))
    if which == 4 and isinstance(last, int):
        w = rng.standard_normal((last, WIDTH)).astype(np.float32) / 3
        return b.add("matmul", x, constant(b, w))
    if which == 5 and rank >= 2:  # rows against rows
        perm = (*range(rank - 2), rank - 1, rank - 2)
        return b.add("matmul", x, b.add("transpose", x, perm=perm))
    if which == 6 and rank >= 2:  # and a sum over an open axis
        perm = (*range(rank - 2), rank - 1, rank - 2)
        return b.add("matmul", b.add("transpose", x, perm=perm), x)
    if which == 7:
        return b.add("concat", x, x, axis=axis)
    if which == 8:
        start = int(rng.integers(-1, 2))
        return b.add("slice", x, ints(b, start), ints(b, 1 << 30), ints(b, axis), ints(b, 1))
    if which == 9:
        reverse = int(rng.integers(2))
        return b.add("cum_sum", x, constant(b, np.array(axis, np.int64)), reverse=reverse)
    if which == 10 and rank >= 2:  # joined, and parted again
        joined = b.add("reshape", x, ints(b, *(0,) * (rank - 2), -1))
        y = b.add("sigmoid", joined)
        return b.add("reshape", y, b.add("shape", x)) if rng.integers(2) else y
    if which == 11:
        return b.add("add", x, b.add("exp", b.add("neg", b.add("abs", x))))
    if which == 12:
        return b.add("gather", x, ints(b, int(rng.integers(-1, 1))), axis=axis)
    if which == 13 and isinstance(last, int):
        return b.add("layer_normalization", x, constant(b, np.ones(last, np.float32)), axis=-1)
    return b.add("relu", x)


def random_graph(rng):
    b = GraphBuilder("random")
    x = b.input("x", TensorType(("n", "seq", WIDTH), "float32"))
    values = [x]
    for _ in range(int(rng.integers(2, 9))):
        value = grown(b, rng, values[int(rng.integers(max(0, len(values) - 2), len(values)))])
        if len(b.type(value).shape) <= 4:
            values.append(value)
    return b.finish(values[-1], values[len(values) // 2])


def run(graph, arrays):
    shapes = {v.name: a.shape for v, a in zip(graph.input_values(), arrays, strict=True)}
    bound = bind_shapes(graph, shapes)
    known = interpret(bound, dict(zip(bound.inputs, arrays, strict=True)))
    return [known[value] for value in bound.outputs]


def save_words(path):
    """Save rows of words, a product and a softmax, whose batch and length are open; return path."""
    rng = np.random.default_rng(5)
    b = GraphBuilder("open")
    ids = b.input("ids", TensorType(("n", "t"), "int64"))
    table = b.constant("table", rng.standard_normal((10, 64)).astype(np.float32))
    weights = b.constant("weights", rng.standard_normal((64, 96)).astype(np.float32))
    rows = b.add("matmul", b.add("gather", table, ids, axis=0), weights)
    trireme.save(b.finish(b.add("softmax", b.add("relu", rows), axis=-1)), path)
    return path


def ids_of(*shape):
    """Feeds of `save_words`."""
    return {"ids": np.random.default_rng(shape[-1]).integers(0, 10, shape)}
