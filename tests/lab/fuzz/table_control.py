"""Rows of control flow: If, Loop and Scan with small bodies that read values around them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ValueInfoProto, helper

from lab.fuzz.grower import DTYPES, Grower
from lab.fuzz.rows import Row

STEPS = ("Tanh", "Relu", "Neg", "Sigmoid", "Abs")


def body(g: Grower, nodes: list[Any], inputs: list[Any], outputs: list[str]) -> Any:
    """Return a body graph; its outputs' types are left to inference."""
    made = [ValueInfoProto(name=name) for name in outputs]
    return helper.make_graph(nodes, g.name("body"), inputs, made)


def typed(name: str, dtype: str, shape: Any) -> Any:
    """Return a body's input."""
    return helper.make_tensor_value_info(name, DTYPES[dtype], shape)


def chain(g: Grower, source: str, count: int) -> tuple[list[Any], str]:
    """Return some unary nodes behind a name, and the last one's output."""
    nodes = []
    for _ in range(count):
        made = g.name("b")
        nodes.append(helper.make_node(g.choose(STEPS), [source], [made], name=g.name("n_b")))
        source = made
    return nodes, source


def if_(g: Grower) -> None:
    """If on a condition that is constant, fed or computed; the branches read x."""
    x = g.pick(("float32",), when=lambda t: t.array.size > 0)
    bits = [t for t in g.values if t.dtype == "bool" and t.rank == 0]
    c = g.choose(bits) if bits and g.chance(0.5) else g.operand(np.array(g.chance(0.5)), 0.4)
    branches = {}
    for name in ("then_branch", "else_branch"):
        nodes, last = chain(g, x.name, int(g.rng.integers(1, 4)))
        branches[name] = body(g, nodes, [], [last])
    g.node("If", [c], branches, captured=[x])


def loop(g: Grower) -> None:
    """Loop a few times over a state, adding a captured value; what it was is stacked at times."""
    x = g.pick(("float32",), when=lambda t: 0 < t.array.size < 200)
    add = g.operand(g.random("float32", x.shape))
    count, go, state = g.name("i"), g.name("go"), g.name("s")
    nodes, last = chain(g, state, 1)
    total, on, kept = g.name("b"), g.name("b"), g.name("b")
    nodes.append(helper.make_node("Add", [last, add.name], [total], name=g.name("n_b")))
    nodes.append(helper.make_node("Identity", [go], [on], name=g.name("n_b")))
    scans = g.chance(0.5)
    if scans:
        nodes.append(helper.make_node("Relu", [total], [kept], name=g.name("n_b")))
    inputs = [typed(count, "int64", []), typed(go, "bool", []), typed(state, "float32", x.shape)]
    inner = body(g, nodes, inputs, [on, total, *([kept] if scans else [])])
    trips = g.constant(np.array(int(g.rng.integers(1, 4))))
    first = g.constant(np.array(True)) if g.chance(0.5) else None
    g.node("Loop", [trips, first, x], {"body": inner}, 2 if scans else 1, captured=[add])


def scan(g: Grower) -> None:
    """Scan over the first axis: a running sum, and each step's value."""
    x = g.pick(("float32",), (2, 3), when=lambda t: t.array.size > 0)
    start = g.operand(np.zeros(x.shape[1:], np.float32))
    state, each, total, out = (g.name("b") for _ in range(4))
    nodes = [
        helper.make_node("Add", [state, each], [total], name=g.name("n_b")),
        helper.make_node(g.choose(STEPS), [total], [out], name=g.name("n_b")),
    ]
    inputs = [typed(name, "float32", x.shape[1:]) for name in (state, each)]
    inner = body(g, nodes, inputs, [total, out])
    g.node("Scan", [start, x], {"body": inner, "num_scan_inputs": 1}, 2)


ROWS: tuple[Row, ...] = (Row("If", if_, 0.4), Row("Loop", loop, 0.3), Row("Scan", scan, 0.3))
