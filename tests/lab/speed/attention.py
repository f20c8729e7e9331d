"""Time attention of one layer on floats, on floats between integers, and on integers throughout.

Usage: python -m lab.speed.attention ROUNDS      One thread; best of the rounds, in turns.
"""

import sys
import time

import numpy as np

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType

SHAPES = {"BERT-mini": (4, 128, 64), "ViT-tiny": (3, 197, 64), "BERT-base": (12, 384, 64)}
"""Heads, length and depth."""
X, SCORES, ODDS, Y = (
    Quant((0.03,), (3,)),
    Quant((0.05,), (0,)),
    Quant((1 / 256,), (-128,)),
    Quant((0.02,), (0,)),
)


def attention(kind, heads, length, depth):
    b = GraphBuilder(kind)

    def add(op, inputs, quant, **attrs):
        return b.add_node(op, inputs, attrs, quants=[quant] if kind == "int8" else ())[0]

    stored = kind != "float32"
    type = ("int8", X) if stored else ("float32", None)
    inputs = [b.input(name, TensorType((1, length, heads * depth), *type)) for name in "qkv"]
    if kind == "float32 between int8":
        inputs = [b.add("dequantize", x) for x in inputs]
    split = b.constant("split", np.array([1, length, heads, depth]))
    q, k, v = (
        add("transpose", [add("reshape", [x, split], X)], X, perm=perm)
        for x, perm in zip(inputs, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True)
    )
    odds = add("softmax", [add("matmul", [q, k], SCORES)], ODDS, axis=-1, beta=depth**-0.5)
    y = add("transpose", [add("matmul", [odds, v], Y)], Y, perm=(0, 2, 1, 3))
    y = add("reshape", [y, b.constant("join", np.array([1, length, heads * depth]))], Y)
    if kind == "float32 between int8":
        y = b.add_node("quantize", [y], {"dtype": "int8"}, quants=[Y])[0]
    return b.finish(y)


def feeds_of(graph):
    rng = np.random.default_rng(0)
    return {
        value.name: rng.integers(-100, 100, value.type.dims).astype(value.dtype)
        for value in graph.input_values()
    }


def main(rounds):
    for name, sizes in SHAPES.items():
        runs = []
        for kind in ("float32", "float32 between int8", "int8"):
            graph = attention(kind, *sizes)
            runs.append((kind, trireme.Session(graph, threads=1), feeds_of(graph), []))
        for _ in range(rounds):
            for _, session, feeds, taken in runs:
                session.run(feeds)
                start = time.perf_counter()
                session.run(feeds)
                taken.append(time.perf_counter() - start)
        print(name, ", ".join(f"{kind} {min(taken) * 1e6:.0f} us" for kind, _, _, taken in runs))


if __name__ == "__main__":
    main(int(sys.argv[1]))
