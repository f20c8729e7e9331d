"""Random loops whose bodies read and write a state at indices that are fed, as ONNX text.

The state has the shape [R, C]. Each statement makes the next state by a gather or a scatter,
perhaps in a branch. Its indices are the same in all turns, or of each turn a row of a table.
"""

import random
from dataclasses import dataclass, field

import numpy as np
from onnx import parser
from programs import HEAD

DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "int64": np.int64,
    "int32": np.int32,
    "uint8": np.uint8,
    "int8": np.int8,
    "bool": np.bool_,
}
TURNS = 7
"""Rows of the tables, and so the most turns."""
WRONG = (0, 1, -1, 9, (1 << 32) + 1)
"""How far beyond its axis a wrong index is; below 0 on the other side."""


@dataclass(frozen=True)
class Indices:
    """Fed indices: shape, dtype, size of the axis by place along the last dimension."""

    shape: tuple[int, ...]
    dtype: str
    sizes: tuple[int, ...]


@dataclass
class IndexLoop:
    """A model, what feeds it, and which of it are indices."""

    seed: int
    dtype: str
    shape: tuple[int, int]
    text: str = ""
    indices: dict[str, Indices] = field(default_factory=dict)
    updates: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def model(self) -> bytes:
        return parser.parse_model(HEAD + self.text).SerializeToString()

    def feeds(self, rng: np.random.Generator, turns: int) -> dict[str, np.ndarray]:
        """Return feeds whose indices are right, negative ones and equal ones among them."""
        fed = {"n": np.array(turns), "x": self._values(rng, self.shape)}
        fed |= {name: self._values(rng, shape) for name, shape in self.updates.items()}
        for name, one in self.indices.items():
            sizes = np.broadcast_to(one.sizes, one.shape)
            fed[name] = rng.integers(-sizes, sizes).astype(DTYPES[one.dtype])
        return fed

    def wrong(self, rng: np.random.Generator, feeds: dict[str, np.ndarray]) -> None:
        """Make some of the indices wrong, often one."""
        names = list(self.indices)
        for _ in range(rng.choice([1, 1, 2, 5])):
            name = names[rng.integers(len(names))]
            one = self.indices[name]
            at = rng.integers(feeds[name].size)
            size = one.sizes[at % len(one.sizes)]
            beyond = int(rng.choice(WRONG[:4] if one.dtype == "int32" else WRONG))
            feeds[name].reshape(-1)[at] = size + beyond if beyond >= 0 else -size + beyond

    def _values(self, rng, shape):
        return rng.integers(0, 3, shape).astype(DTYPES[self.dtype])


class Writer:
    """Writes one loop; every name is new."""

    def __init__(self, seed):
        self.rng, self.count = random.Random(seed), 0
        dtype = self.rng.choice([*DTYPES])
        self.made = IndexLoop(seed, dtype, self.rng.choice([(5, 4), (3, 33), (16, 64)]))

    def name(self, kind):
        self.count += 1
        return f"{kind}{self.count}"

    def index(self, shape, sizes, dtype="int64"):
        """Text that reads indices, and their name: the same ones in all turns, or a turn's own."""
        name = self.name("at")
        per_turn = self.rng.random() < 0.4
        fed = (TURNS, *shape) if per_turn else shape
        self.made.indices[name] = Indices(fed, dtype, sizes)
        if not per_turn:
            return "", name
        mine = self.name("mine")
        return f"{mine} = Gather({name}, i)", mine

    def update(self, *shape):
        name = self.name("upd")
        self.made.updates[name] = shape
        return name

    def small(self):
        return self.rng.choice(["int32", "int64"])

    def scatter_nd(self, s):
        rows, columns = self.made.shape
        k, t = self.rng.randrange(1, 4), self.name("t")
        named = self.rng.choice([(rows,), (rows, columns)])
        read, at = self.index((k, len(named)), named)
        update = self.update(k, columns) if len(named) == 1 else self.update(k)
        how = "" if self.made.dtype in ("bool", "float16") else self.rng.choice(["", "add", "max"])
        attr = f'<reduction = "{how}">' if how else ""
        return f"{read} {t} = ScatterND {attr} ({s}, {at}, {update})", t

    def scatter_elements(self, s):
        axis, t = self.rng.randrange(2), self.name("t")
        shape = list(self.made.shape)
        shape[axis] = self.rng.randrange(1, 4)
        read, at = self.index(tuple(shape), (self.made.shape[axis],), self.small())
        update = self.update(*shape)
        return f"{read} {t} = ScatterElements <axis = {axis}> ({s}, {at}, {update})", t

    def gather(self, s):
        """Rows of the state, written to other rows of it."""
        rows, columns = self.made.shape
        k, p, t = self.rng.randrange(1, 4), self.name("p"), self.name("t")
        how = self.rng.choice(["Gather", "GatherElements", "GatherND"])
        shape = {"Gather": (k,), "GatherElements": (k, columns), "GatherND": (k, 1)}[how]
        read, at = self.index(shape, (rows,), "int64" if how == "GatherND" else self.small())
        again, to = self.index((k, 1), (rows,))
        return f"{read} {again} {p} = {how} ({s}, {at}) {t} = ScatterND ({s}, {to}, {p})", t

    def branch(self, s):
        """A statement in even turns, another in odd ones."""
        parts = []
        for kind in ("then_branch", "else_branch"):
            text, out = self.rng.choice([self.scatter_nd, self.gather, self.same])(s)
            made = self.name("o")
            ends = f"{self.made.dtype}[{self.made.shape[0]},{self.made.shape[1]}] {made}"
            parts.append(
                f"{kind} = {self.name('g')} () => ({ends}) {{ {text} {made} = Identity({out}) }}"
            )
        t, r, c = self.name("t"), self.name("r"), self.name("c")
        return f"{r} = Mod(i, two) {c} = Equal(r0, {r}) {t} = If ({c}) < {', '.join(parts)} >", t

    def same(self, s):
        return "", s

    def row(self, t):
        """Text that makes what a turn keeps, and its type."""
        dtype, (rows, columns) = self.made.dtype, self.made.shape
        if self.rng.random() < 0.5:
            return "row = Identity(" + t + ")", f"{dtype}[{rows},{columns}]"
        read, at = self.index((2,), (columns,), self.small())
        return f"{read} row = Gather <axis = 1> ({t}, {at})", f"{dtype}[{rows},2]"


def random_index_loop(seed: int) -> IndexLoop:
    """Return a loop of up to TURNS turns; `more` is false behind turn `last`, where it is fed."""
    w = Writer(seed)
    state = f"{w.made.dtype}[{w.made.shape[0]},{w.made.shape[1]}]"
    text, t = [], "s"
    for _ in range(w.rng.randrange(1, 4)):
        kinds = [w.scatter_nd, w.scatter_elements, w.gather, w.gather]
        one, t = w.rng.choice([*kinds, w.branch] if w.rng.random() < 0.3 else kinds)(t)
        text.append(one)
    row, type = w.row(t)
    keeps = w.rng.random() < 0.6
    kept = f", {type} row" if keeps else ""
    goes = w.rng.choice(["more = Identity(going)", "more = Less(i, last)"])
    body = f"{' '.join(text)} {row if keeps else ''} {goes} new = Identity({t})"
    if not keeps:
        w.made.indices = {k: v for k, v in w.made.indices.items() if k in body}
    fed = [f"{one.dtype}{list(one.shape)} {name}" for name, one in w.made.indices.items()]
    fed += [f"{w.made.dtype}{list(shape)} {name}" for name, shape in w.made.updates.items()]
    many = type.replace("[", "[T,")
    outer, made = (", all", f", {many} all") if keeps else ("", "")
    w.made.text = f"""
    indexed (int64 n, {state} x, {", ".join(fed)}) => ({state} y{made})
    {{
        two = Constant <value = int64 {{2}}> ()
        r0 = Constant <value = int64 {{0}}> ()
        last = Constant <value = int64 {{3}}> ()
        y{outer} = Loop (n, , x) <body = turn
            (int64 i, bool going, {state} s) => (bool more, {state} new{kept}) {{ {body} }}
        >
    }}
    """
    return w.made
