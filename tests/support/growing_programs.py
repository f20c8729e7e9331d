"""Random loops whose carried values grow, in ONNX's text form."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from onnx import parser
from programs import HEAD

TEXT = """
grows (int64 n, float stop, float[j,4] w{fed}) => ({made})
{{
    one = Constant <value = int64[1] {{1}}> ()
    zero = Constant <value = int64[1] {{0}}> ()
    {outs} = Loop ({trips}, {first}) <body = turn
        (int64 i, bool going{given}) => (bool more{body_made})
        {{ count = Cast <to = 1> (i)  half = ReduceMean <keepdims = 0> (w)  {step} }}
    >
}}
"""
AXES = {"rows": 0, "columns": 1, "middle": 1}
SHAPES = {
    "rows": ("{},4", lambda k: (k, 4)),
    "columns": ("4,{}", lambda k: (4, k)),
    "middle": ("1,{},4", lambda k: (1, k, 4)),
    "fixed": ("3,4", lambda k: (3, 4)),
}


@dataclass
class State:
    """A carried value: its name, its kind, the first size, and how it grows."""

    name: str
    kind: str
    size: int
    how: str


class GrowingProgram:
    """A loop of some states.

    data: the model; turns: the most, None where its condition alone ends it
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        rng, kinds = self._rng, list(SHAPES)
        self._parts = rng.choice([1, 1, 2])
        self.states = [
            State(f"s{k}", rng.choice(kinds[:3] if k == 0 else kinds), rng.randint(0, 5), "")
            for k in range(rng.randint(1, 3))
        ]
        self._steps: list[str] = []
        self._rows: list[str] = []
        for state in self.states:
            self._step(state)
        self.ends = rng.choice(["trips", "trips", "data", "both", "shape"])
        grow = [s for s in self.states if s.kind != "fixed"]
        if self.ends == "shape":
            size = f"Size({grow[0].name})"
            self._steps.append(f"cells = {size}  limit = Cast <to = 7> (stop)")
            self._steps.append("times = Constant <value = int64 {8}> ()  most = Mul(limit, times)")
            self._steps.append("more = Less(cells, most)")
        elif self.ends in ("data", "both"):
            self._steps.append("more = Less(count, stop)")
        else:
            self._steps.append("more = Identity(going)")
        self.data = self._model()

    def _read(self, state: State) -> str:
        """Return the name of a [4] value that a turn computes of a state."""
        rng, name = self._rng, state.name
        out = f"r_{name}"
        axes = {"rows": 0, "fixed": 0, "columns": 1, "middle": 1}[state.kind]
        self._steps.append(f"ax_{name} = Constant <value = int64[1] {{{axes}}}> ()")
        op = rng.choice(["ReduceMax", "ReduceMean", "attend"]) if state.size else "ReduceMax"
        source = name
        if rng.random() < 0.3:
            self._steps.append(f"act_{name} = Tanh({name})")
            source = f"act_{name}"
        if op == "attend" and state.kind == "rows":
            self._steps.append(
                f"q_{name} = ReduceMean <keepdims = 1> (w, zero)"
                f"  t_{name} = Transpose <perm = [1, 0]> ({source})"
                f"  p_{name} = MatMul(q_{name}, t_{name})  z_{name} = Softmax <axis = 1> (p_{name})"
                f"  m_{name} = MatMul(z_{name}, {source})  {out} = Squeeze(m_{name}, zero)"
            )
            return out
        op = op if op != "attend" else "ReduceMean"
        self._steps.append(f"m_{name} = {op} <keepdims = 0> ({source}, ax_{name})")
        self._steps.append(
            f"{out} = Reshape(m_{name}, four_{name})"
            if state.kind == "middle"
            else f"{out} = Identity(m_{name})"
        )
        if state.kind == "middle":
            self._steps.insert(0, f"four_{name} = Constant <value = int64[1] {{4}}> ()")
        return out

    def _step(self, state: State) -> None:
        rng, name, kind = self._rng, state.name, state.kind
        read = self._read(state) if rng.random() < 0.8 else None
        value = f"v_{name}"
        scaled = "Mul(w, half)" if read is None else f"Add(w, {read})"
        self._steps.append(f"x_{name} = {scaled}  {value} = Tanh(x_{name})")
        if rng.random() < 0.4 and read is not None:
            self._steps.append(f"row_{name} = Add({read}, count)")
            self._rows.append(f"row_{name}")
        if kind == "fixed":
            state.how = rng.choice(["changes", "stays"])
            if state.how == "stays":
                self._steps.append(f"n_{name} = Identity({name})")
            else:
                mean = f"mean_{name} = ReduceMean <keepdims = 0> ({value}, zero)"
                self._steps.append(f"{mean}  n_{name} = Sub(mean_{name}, {name})")
            return
        state.how = rng.choice(["append", "append", "append", "prepend", "both read"])
        part = value
        if kind == "columns":
            self._steps.append(f"part_{name} = Transpose <perm = [1, 0]> ({value})")
            part = f"part_{name}"
        elif kind == "middle":
            self._steps.append(f"part_{name} = Unsqueeze({value}, zero)")
            part = f"part_{name}"
        joined = f"{part}, {name}" if state.how == "prepend" else f"{name}, {part}"
        self._steps.append(f"n_{name} = Concat <axis = {AXES[kind]}> ({joined})")
        if state.how == "both read":
            self._steps.append(f"whole_{name} = ReduceMax <keepdims = 0> (n_{name})")
            self._rows.append(f"whole_{name}")

    def _model(self) -> bytes:
        states = self.states

        def type_of(state: State, size: str) -> str:
            return f"float[{SHAPES[state.kind][0].format(size)}]"

        rows = [
            f"float[turns, 4] all_{r}" if r[0] == "r" else f"float[turns] all_{r}"
            for r in self._rows
        ]
        row_types = [f", float[4] {r}" if r[0] == "r" else f", float {r}" for r in self._rows]
        ends = [f"{type_of(s, f'e{k}')} y{k}" for k, s in enumerate(states)]
        text = TEXT.format(
            fed="".join(f", {type_of(s, f'k{k}')} x{k}" for k, s in enumerate(states)),
            made=", ".join([*ends, *rows]),
            outs=", ".join(
                [*(f"y{k}" for k in range(len(states))), *(f"all_{r}" for r in self._rows)]
            ),
            trips="n" if self.ends in ("trips", "both") else "",
            first=", ".join(["", *(f"x{k}" for k in range(len(states)))]),
            given="".join(f", {type_of(s, f'a{k}')} {s.name}" for k, s in enumerate(states)),
            body_made="".join(
                [*(f", {type_of(s, f'b{k}')} n_{s.name}" for k, s in enumerate(states)), *row_types]
            ),
            step="\n".join(self._steps),
        )
        return parser.parse_model(HEAD + text).SerializeToString()

    def feeds(self, turns: int) -> dict[str, np.ndarray]:
        """Return feeds for so many turns, the first sizes those of the program."""
        rng = np.random.default_rng(turns)
        parts = self._parts
        fed = {"n": np.array(turns), "stop": np.array(turns - 1, np.float32)}
        fed["w"] = rng.uniform(-1, 1, (parts, 4)).astype(np.float32)
        for k, state in enumerate(self.states):
            shape = SHAPES[state.kind][1](state.size)
            fed[f"x{k}"] = rng.uniform(-1, 1, shape).astype(np.float32)
        return fed
