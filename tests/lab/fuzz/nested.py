"""Random ONNX models of If, Loop and Scan in one another, whose arithmetic is exact in any order.

Floats are small integers that each op keeps small, so ONNX Runtime must agree to the bit, and a
condition on them is never a near miss. A value is of one of six kinds: `row` float[3], `grid`
float[2,3], `one` float[], `list` float[of any length], `count` int64[], `flag` bool[].
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

KINDS = ("row", "grid", "one", "list", "count", "flag")
FLOATS = ("row", "grid", "one", "list")
SHAPES: dict[str, tuple[Any, ...]] = {
    "row": (3,),
    "grid": (2, 3),
    "one": (),
    "list": (None,),
    "count": (),
    "flag": (),
}
DTYPES = {"count": TensorProto.INT64, "flag": TensorProto.BOOL}
MOST_DEPTH = 3
Live = dict[str, list[str]]


@dataclass
class Nested:
    """A model, and what to feed it.

    feeds: arrays by name, a dictionary a run
    """

    seed: int
    model: ModelProto
    feeds: list[dict[str, Any]]


@dataclass
class Writer:
    """Writes nodes into a list; every name is new.

    open_dims: body inputs and outputs are declared with symbols
    """

    rng: random.Random
    open_dims: bool = False
    count: int = 0
    constants: dict[str, Any] = field(default_factory=dict)

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def constant(self, data: Any) -> str:
        """Return the name of a constant of the outermost graph."""
        name = self.name("c")
        self.constants[name] = numpy_helper.from_array(np.asarray(data), name)
        return name

    def typed(self, name: str, kind: str, is_row: bool = False) -> Any:
        """Return a declared value; without a turn, ONNX Runtime takes 0 for a symbol of a row."""
        shape = [self.name("d") if dim is None else dim for dim in SHAPES[kind]]
        if self.open_dims and not is_row and kind in ("row", "grid") and self.rng.random() < 0.5:
            shape[0] = self.name("d")
        return helper.make_tensor_value_info(name, DTYPES.get(kind, TensorProto.FLOAT), shape)

    # Values of a kind, made from those that live.

    def add(self, nodes: list[Any], op: str, inputs: list[str], **attrs: Any) -> str:
        made = self.name("v")
        nodes.append(helper.make_node(op, inputs, [made], name=self.name("n"), **attrs))
        return made

    def small(self, nodes: list[Any], source: str) -> str:
        low, high = self.constant(np.float32(-50)), self.constant(np.float32(50))
        return self.add(nodes, "Clip", [source, low, high])

    def make(self, nodes: list[Any], live: Live, kind: str) -> str:
        """Add nodes that make a new value of a kind, and return its name."""
        return {
            "row": self.float_,
            "grid": self.float_,
            "one": self.float_,
            "list": self.list_,
            "count": self.count_,
            "flag": self.flag,
        }[kind](nodes, live, kind)

    def float_(self, nodes: list[Any], live: Live, kind: str) -> str:
        sources = {"row": ("row", "one"), "grid": ("row", "grid", "one"), "one": ("one",)}[kind]
        a = self.rng.choice(live[kind])
        way = self.rng.randrange(6)
        if way == 0 or (way == 1 and kind != "one"):
            return self.add(nodes, self.rng.choice(("Neg", "Abs", "Relu", "Identity")), [a])
        if way == 1:
            wide = self.rng.choice(live[self.rng.choice(("row", "grid", "list", "one"))])
            return self.small(nodes, self.add(nodes, "ReduceSum", [wide], keepdims=0))
        if way == 2 and kind == "grid":
            product = self.add(nodes, "MatMul", [a, self.constant(self.matrix())])
            return self.small(nodes, product)
        if way == 2 and kind == "row":
            grid = self.rng.choice(live["grid"])
            axes = self.constant(np.array([0], np.int64))
            return self.small(nodes, self.add(nodes, "ReduceSum", [grid, axes], keepdims=0))
        if way == 3:
            source = self.rng.choice(live["count"])
            number = self.add(nodes, "Cast", [source], to=TensorProto.FLOAT)
            return self.small(nodes, self.add(nodes, "Add", [a, number]))
        b = self.rng.choice(live[self.rng.choice(sources)])
        op = self.rng.choice(("Add", "Sub", "Max", "Min", "Mul"))
        return self.small(nodes, self.add(nodes, op, self.rng.sample([a, b], 2)))

    def matrix(self) -> Any:
        return np.array(self.rng.choices((-1, 0, 1), k=9), np.float32).reshape(3, 3)

    def list_(self, nodes: list[Any], live: Live, kind: str) -> str:
        way = self.rng.randrange(4)
        a = self.rng.choice(live["list"])
        if way == 0:
            return self.add(nodes, self.rng.choice(("Neg", "Abs", "Relu")), [a])
        if way == 1:
            one = self.rng.choice(live["one"])
            return self.small(nodes, self.add(nodes, "Add", [a, one]))
        row, zero = self.rng.choice(live["row"]), self.constant(np.array([0], np.int64))
        if way == 2:
            length = self.bounded(nodes, live, 4)
            end = self.add(nodes, "Unsqueeze", [length, zero])
            return self.add(nodes, "Slice", [row, zero, end])
        joined = self.add(nodes, "Concat", self.rng.sample([a, row], 2), axis=0)
        return self.add(nodes, "Slice", [joined, zero, self.constant(np.array([20], np.int64))])

    def bounded(self, nodes: list[Any], live: Live, most: int) -> str:
        """Return a count from 0 up to below `most`."""
        source = self.rng.choice(live["count"])
        return self.add(nodes, "Mod", [source, self.constant(np.int64(most))])

    def count_(self, nodes: list[Any], live: Live, kind: str) -> str:
        way = self.rng.randrange(3)
        if way == 0:
            source = self.rng.choice(live[self.rng.choice(FLOATS)])
            return self.add(nodes, "Size", [source])
        a, b = self.rng.choice(live["count"]), self.rng.choice(live["count"])
        op = self.rng.choice(("Add", "Sub", "Max", "Min"))
        made = self.add(nodes, op, [a, b])
        return self.add(nodes, "Mod", [made, self.constant(np.int64(97))])

    def flag(self, nodes: list[Any], live: Live, kind: str) -> str:
        way = self.rng.randrange(4)
        if way == 0:
            return self.add(nodes, "Not", [self.rng.choice(live["flag"])])
        if way == 1:
            a, b = self.rng.choice(live["one"]), self.rng.choice(live["one"])
            return self.add(nodes, self.rng.choice(("Less", "GreaterOrEqual")), [a, b])
        if way == 2:
            pair = [self.rng.choice(live["flag"]) for _ in range(2)]
            return self.add(nodes, self.rng.choice(("And", "Or", "Xor")), pair)
        rest = self.bounded(nodes, live, self.rng.choice((2, 3)))
        return self.add(nodes, "Equal", [rest, self.constant(np.int64(0))])

    # Blocks and control flow.

    def block(self, nodes: list[Any], live: Live, depth: int, statements: int) -> Live:
        """Add statements, and return what lives after them."""
        live = {kind: list(names) for kind, names in live.items()}
        for _ in range(statements):
            ways = [self.plain] * (3 if depth else 2)
            if depth < MOST_DEPTH:
                ways += [self.choose, self.loop, self.loop, self.scan]
            self.rng.choice(ways)(nodes, live, depth)
        return live

    def plain(self, nodes: list[Any], live: Live, depth: int) -> None:
        kind = self.rng.choice(KINDS)
        live[kind].append(self.make(nodes, live, kind))

    def kinds(self, least: int, most: int) -> list[str]:
        return self.rng.choices(KINDS, k=self.rng.randint(least, most))

    def inner(
        self, live: Live, depth: int, kinds: list[str], given: Live, passed: int = 0
    ) -> tuple[Any, list[str]]:
        """Return the nodes of a body, and the values that it returns, of the given kinds.

        passed: so many of the first may be an input of the body as it is
        """
        nodes: list[Any] = []
        around = {kind: [*live[kind], *given.get(kind, [])] for kind in KINDS}
        after = self.block(nodes, around, depth + 1, self.rng.randint(0, 3))
        made = [self.make(nodes, after, kind) for kind in kinds]
        outs = [self.add(nodes, "Identity", [one]) for one in made]
        for k, kind in enumerate(kinds[:passed]):
            states = [one for one in given.get(kind, []) if one.startswith("s")]
            if states and self.rng.random() < 0.1:
                outs[k] = self.rng.choice(states)
        return nodes, outs

    def body(
        self, nodes: list[Any], ins: list[Any], outs: list[str], kinds: list[str], rows: int = 0
    ) -> Any:
        """Return a body; its last `rows` outputs are stacked."""
        pairs = enumerate(zip(outs, kinds, strict=True))
        typed = [self.typed(name, kind, k >= len(outs) - rows) for k, (name, kind) in pairs]
        return helper.make_graph(nodes, self.name("g"), ins, typed)

    def choose(self, nodes: list[Any], live: Live, depth: int) -> None:
        kinds = self.kinds(1, 3)
        branches = {}
        for side in ("then_branch", "else_branch"):
            inside, outs = self.inner(live, depth, kinds, {})
            branches[side] = self.body(inside, [], outs, kinds)
        condition = self.make(nodes, live, "flag")
        self.put(nodes, live, "If", [condition], branches, kinds)

    def put(
        self, nodes: list[Any], live: Live, op: str, inputs: list[str], attrs: Any, kinds: list[str]
    ) -> list[str]:
        """Add a control node whose first outputs live on; return all its outputs."""
        outs = [self.name("v") for _ in kinds]
        nodes.append(helper.make_node(op, inputs, outs, name=self.name("n"), **attrs))
        for kind, out in zip(kinds, outs, strict=True):
            if kind in live:
                live[kind].append(out)
        return outs

    def loop(self, nodes: list[Any], live: Live, depth: int) -> None:
        carried = self.kinds(0, 3)
        rows = [kind for kind in self.kinds(0 if carried else 1, 2) if kind != "list"]
        if not carried and not rows:
            carried = ["row"]
        turn, going = self.name("i"), self.name("going")
        states = [self.name("s") for _ in carried]
        given: Live = {"count": [turn], "flag": [going]}
        for kind, state in zip(carried, states, strict=True):
            given.setdefault(kind, []).append(state)
        inside, outs = self.inner(live, depth, [*carried, *rows], given, len(carried))
        ends = self.rng.random() < 0.4
        more = self.name("more")
        if ends:
            limit = self.constant(np.int64(self.rng.randrange(4)))
            below = self.add(inside, "Less", [turn, limit])
            flag = self.rng.choice(live["flag"])
            inside.append(helper.make_node(self.rng.choice(("And", "Or")), [below, flag], [more]))
        else:
            inside.append(helper.make_node("Identity", [going], [more]))
        trips = self.trips(nodes, live)
        condition = self.rng.choice(["", "", self.constant(np.array(True)), "fed"])
        if condition == "fed":
            condition = self.make(nodes, live, "flag")
        starts = [self.rng.choice(live[kind]) for kind in carried]
        ins = [
            helper.make_tensor_value_info(turn, TensorProto.INT64, []),
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
            *(self.typed(state, kind) for state, kind in zip(states, carried, strict=True)),
        ]
        body = self.body(inside, ins, [more, *outs], ["flag", *carried, *rows], len(rows))
        kinds = [*carried, *(f"rows of {kind}" for kind in rows)]
        made = self.put(nodes, live, "Loop", [trips, condition, *starts], {"body": body}, kinds)
        self.gather(nodes, live, made[len(carried) :], rows)

    def trips(self, nodes: list[Any], live: Live) -> str:
        way = self.rng.randrange(4)
        if way == 0:
            return self.constant(np.int64(self.rng.choice((-2, 0, 1, 2, 5))))
        if way == 1:
            return self.constant(np.array([self.rng.randrange(4)], np.int64))
        return self.bounded(nodes, live, self.rng.choice((2, 4)))

    def gather(self, nodes: list[Any], live: Live, made: list[str], rows: list[str]) -> None:
        """Make values of the plain kinds of stacked rows."""
        for one, kind in zip(made, rows, strict=True):
            live["count"].append(self.add(nodes, "Size", [one]))
            if kind in ("row", "grid", "one"):
                axes = self.constant(np.array([0], np.int64))
                total = self.add(nodes, "ReduceSum", [one, axes], keepdims=0)
                live[kind].append(self.small(nodes, total))

    def scan(self, nodes: list[Any], live: Live, depth: int) -> None:
        carried = [kind for kind in self.kinds(0, 2) if kind != "list"]
        rows = [kind for kind in self.kinds(1, 2) if kind != "list"] or ["one"]
        axes = [self.rng.choice((0, 1, -1, -2)) for _ in range(self.rng.randint(1, 2))]
        axis = axes[0] % 2
        axes = [axis if self.rng.random() < 0.7 else axis - 2 for _ in axes]
        slice_kind = "row" if axis == 0 else "pair"
        states = [self.name("s") for _ in carried]
        slices = [self.name("x") for _ in axes]
        given: Live = {}
        for kind, state in zip(carried, states, strict=True):
            given.setdefault(kind, []).append(state)
        before: list[Any] = []
        if slice_kind == "row":
            given.setdefault("row", []).extend(slices)
        else:
            sums = [self.add(before, "ReduceSum", [one], keepdims=0) for one in slices]
            given.setdefault("one", []).extend(sums)
        inside, outs = self.inner(live, depth, [*carried, *rows], given)
        shape = [3] if slice_kind == "row" else [2]
        ins = [
            *(self.typed(state, kind) for state, kind in zip(states, carried, strict=True)),
            *(helper.make_tensor_value_info(one, TensorProto.FLOAT, shape) for one in slices),
        ]
        body = self.body([*before, *inside], ins, outs, [*carried, *rows], len(rows))
        out_axes = [self.rng.randint(0, len(SHAPES[kind])) for kind in rows]
        attrs = {
            "body": body,
            "num_scan_inputs": len(slices),
            "scan_input_axes": axes,
            "scan_input_directions": [self.rng.randrange(2) for _ in axes],
            "scan_output_axes": out_axes,
            "scan_output_directions": [self.rng.randrange(2) for _ in rows],
        }
        starts = [self.rng.choice(live[kind]) for kind in carried]
        given_grids = [self.rng.choice(live["grid"]) for _ in slices]
        kinds = [*carried, *(f"rows of {kind}" for kind in rows)]
        made = self.put(nodes, live, "Scan", [*starts, *given_grids], attrs, kinds)
        moved = [one for one, at in zip(made[len(carried) :], out_axes, strict=True) if at == 0]
        at_front = [kind for kind, at in zip(rows, out_axes, strict=True) if at == 0]
        self.gather(nodes, live, moved, at_front)


def nested(seed: int, open_dims: bool | None = None) -> Nested:
    """Return a random model, and two sets of feeds.

    open_dims: whether body values are declared with symbols; by the seed when None
    """
    rng = random.Random(seed)
    writer = Writer(rng, rng.random() < 0.4 if open_dims is None else open_dims)
    live: Live = {
        "row": ["x"],
        "grid": ["xs"],
        "one": ["u"],
        "list": ["some"],
        "count": ["n", "m"],
        "flag": ["p", "q"],
    }
    nodes: list[Any] = []
    after = writer.block(nodes, live, 0, rng.randint(2, 4))
    made = [
        (kind, one)
        for kind, names in after.items()
        for one in names
        if one not in ("x", "xs", "u", "some", "n", "m", "p", "q")
    ]
    outs = [writer.typed(one, kind) for kind, one in made]
    ins = [writer.typed(one, kind) for kind, names in live.items() for one in names]
    graph = helper.make_graph(
        nodes, f"nested_{seed}", ins, outs, initializer=list(writer.constants.values())
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return Nested(seed, model, [_feeds(rng) for _ in range(2)])


def _feeds(rng: random.Random) -> dict[str, Any]:
    def small(*shape: int) -> Any:
        data = [rng.randint(-4, 4) for _ in range(int(np.prod(shape, dtype=int)))]
        return np.array(data, np.float32).reshape(shape)

    return {
        "x": small(3),
        "xs": small(2, 3),
        "u": small(),
        "some": small(rng.randrange(1, 5)),
        "n": np.array(rng.randrange(6)),
        "m": np.array(rng.randrange(6)),
        "p": np.array(rng.random() < 0.5),
        "q": np.array(rng.random() < 0.5),
    }
