"""Small random ONNX models with past inputs and present outputs, and ONNX Runtime's answers.

Each state is of one kind: it grows along an axis by what is fed, it keeps the last rows of what was
fed, or it has a fixed shape and is updated.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

WIDTH = 4
STATES = {"past.*": "present.*"}


@dataclass(frozen=True)
class Stateful:
    """A model, its inputs that are fed, and the kind of each state."""

    model: onnx.ModelProto
    kinds: tuple[str, ...]
    has_open_shapes: bool

    def feeds(self, rng: np.random.Generator) -> dict[str, Any]:
        """Return what one run is fed: rows [2, s, WIDTH], one row where shapes are fixed."""
        rows = int(rng.integers(1, 4)) if self.has_open_shapes else 1
        return {"x": rng.standard_normal((2, rows, WIDTH)).astype(np.float32)}

    def initial(self) -> dict[str, Any]:
        """Return the states before the first run."""
        rows = {"grows": 0, "slides": 0, "fixed": 1}
        return {
            f"past.{k}": np.zeros((2, rows[kind], WIDTH), np.float32)
            for k, kind in enumerate(self.kinds)
        }


def random_model(seed: int, has_open_shapes: bool) -> Stateful:
    """Return a model of one to three states; all are fixed where shapes are."""
    rng = random.Random(seed)
    kinds = ("fixed", "grows", "slides") if has_open_shapes else ("fixed",)
    chosen = tuple(rng.choice(kinds) for _ in range(rng.randint(1, 3)))
    made = _Maker(rng, chosen, has_open_shapes)
    return Stateful(made.model(), chosen, has_open_shapes)


def peer_session(model: onnx.ModelProto) -> ort.InferenceSession:
    """Return ONNX Runtime's session of a model."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options)


class PeerRuns:
    """ONNX Runtime, fed its own presents. states: those before the first run, by past's name."""

    def __init__(self, model: onnx.ModelProto, states: dict[str, Any]) -> None:
        self._session, self.states = peer_session(model), states

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs but the presents."""
        names = [value.name for value in self._session.get_outputs()]
        made = dict(zip(names, self._session.run(None, {**feeds, **self.states}), strict=True))
        for name in [name for name in names if name.startswith("present")]:
            self.states[name.replace("present", "past")] = made.pop(name)
        return made


class _Maker:
    """Builds a model: states of each kind, what updates them, and an output that reads all."""

    def __init__(self, rng: random.Random, kinds: tuple[str, ...], is_open: bool) -> None:
        self._rng, self._kinds, self._rows = rng, kinds, "s" if is_open else 1
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._count = 0

    def model(self) -> onnx.ModelProto:
        rows = {"grows": "p{}", "slides": "w{}"}
        inputs = [self._info("x", self._rows)]
        outputs = [self._info("y", "r")]
        parts = [self._varied("x")]
        for k, kind in enumerate(self._kinds):
            length = rows[kind].format(k) if kind in rows else 1
            inputs.append(self._info(f"past.{k}", length))
            outputs.append(self._info(f"present.{k}", f"t{k}" if kind in rows else 1))
            parts.append(self._state(k, kind, self._rng.choice(parts)))
        sums = [self._node("ReduceSum", part, self._const([1]), keepdims=1) for part in parts]
        total = sums[0]
        for one in sums[1:]:
            total = self._node(self._rng.choice(["Add", "Mul", "Max"]), total, one)
        self._node("Tanh", total, out="y")
        graph = helper.make_graph(self._nodes, "stateful", inputs, outputs, self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def _state(self, k: int, kind: str, new: str) -> str:
        past = f"past.{k}"
        if kind == "fixed":
            # the state is what it was, and the mean of the new rows
            mean = self._node("ReduceMean", new, self._const([1]), keepdims=1)
            op = self._rng.choice(["Add", "Sub", "Max"])
            self._node("Tanh", self._node(op, past, mean), out=f"present.{k}")
            return self._rng.choice([past, f"present.{k}"])
        joined = self._node("Concat", past, self._varied(new), axis=1)
        if kind == "slides":
            ends = [self._const([n]) for n in (-3, 1 << 30, 1)]
            self._node("Slice", joined, *ends, out=f"present.{k}")
        else:
            self._node("Identity", joined, out=f"present.{k}")
        return self._varied(joined)

    def _varied(self, value: str) -> str:
        kind = self._rng.choice(["Tanh", "Relu", "MatMul", "none"])
        if kind == "none":
            return value
        if kind == "MatMul":
            weight = np.random.default_rng(self._rng.randrange(1 << 30)).standard_normal
            return self._node("MatMul", value, self._const(weight((WIDTH, WIDTH)) / 2, np.float32))
        return self._node(kind, value)

    def _node(self, op: str, *inputs: str, out: str = "", **attrs: Any) -> str:
        self._count += 1
        out = out or f"v{self._count}"
        self._nodes.append(helper.make_node(op, list(inputs), [out], f"n{self._count}", **attrs))
        return out

    def _const(self, data: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.array(data, dtype), name))
        return name

    @staticmethod
    def _info(name: str, rows: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, rows, WIDTH])
