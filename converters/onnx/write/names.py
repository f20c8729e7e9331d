"""The names, initializers and nodes of an ONNX graph while it is written.

A value of the graph has a stored form, which is the integers where the value is quantised, and a
real form. Either form exists in the order of the axes that the graph has, and with the channels
first where an op needs that order. A form is made when a node first asks for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from trireme.converters.fresh_names import FreshNames
from trireme.ir.graph import Graph, Value
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import ConvertError

_BIAS_DTYPES = ("int32", "int64")
"""Dtypes of biases: no zero point is written for them."""
MOST_INT32 = (1 << 31) - 1


class OnnxNames:
    """The forms of a graph's values in an ONNX graph, and the nodes that make them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.fresh = FreshNames().fresh
        self._stored: dict[tuple[int, bool], str] = {}
        self._real: dict[tuple[int, bool], str] = {}
        self._named = {id: self.fresh(self._value(id).name) for id in graph.inputs}
        for id in graph.outputs:
            if id not in self._named and not self._value(id).is_constant:
                self._named[id] = self.fresh(self._value(id).name)
        self._stored.update({(id, False): self._named[id] for id in graph.inputs})

    def _value(self, id: int) -> Value:
        return self.graph.values[id]

    def emit(
        self, op: str, inputs: list[str], wanted: str, outputs: int = 1, **attrs: Any
    ) -> list[str]:
        """Add a node and return the fresh names of its outputs."""
        names = [self.fresh(wanted) for _ in range(outputs)]
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        self.nodes.append(onnx.helper.make_node(op, inputs, names, **attrs))
        return names

    def constant(self, data: Array, wanted: str) -> str:
        """Add an initializer and return its name."""
        name = self.fresh(wanted)
        self.initializers.append(onnx.numpy_helper.from_array(np.array(data, order="C"), name))
        return name

    def stored(self, id: int, channels_first: bool = False) -> str:
        """Return the name of a value's stored form."""
        key = (id, channels_first)
        if key not in self._stored:
            self._stored[key] = self._made(id, channels_first)
        return self._stored[key]

    def _made(self, id: int, channels_first: bool) -> str:
        value = self._value(id)
        if value.data is not None:
            data = value.data
            if channels_first:
                data = np.transpose(data, channels_first_perm(data.ndim))
            return self.constant(data, value.first_name)
        rank = len(value.shape)
        perm = channels_first_perm(rank) if channels_first else channels_last_perm(rank)
        source = self.stored(id, not channels_first)
        (made,) = self.emit("Transpose", [source], value.first_name, perm=perm)
        return made if channels_first else self._with_name(id, made)

    def real(self, id: int, channels_first: bool = False) -> str:
        """Return the name of a value's real form; of a value without quantisation, the stored."""
        value = self._value(id)
        if value.quant is None:
            return self.stored(id, channels_first)
        key = (id, channels_first)
        if key not in self._real and value.data is not None and value.dtype == "int64":
            self._real[key] = self._wide_bias(value, value.data)
        if key not in self._real:
            source = self.stored(id, channels_first)
            scale, zero, attrs = self._quant(value, channels_first)
            inputs = [source, scale, zero] if value.dtype not in _BIAS_DTYPES else [source, scale]
            self._real[key] = self.emit("DequantizeLinear", inputs, "real", **attrs)[0]
        return self._real[key]

    def _wide_bias(self, value: Value, data: Array) -> str:
        """Return the name of a bias of int64, which DequantizeLinear does not take.

        It is written as int32 where it fits, else as its real numbers.
        """
        if np.abs(data).max(initial=0) <= MOST_INT32:
            scale, _, attrs = self._quant(value, False)
            source = self.constant(data.astype(np.int32), value.first_name)
            return self.emit("DequantizeLinear", [source, scale], "real", **attrs)[0]
        scales = np.array(value.quant.scales if value.quant else 1, np.float64)
        return self.constant((data * scales).astype(np.float32), value.first_name)

    def bind(self, id: int, name: str, channels_first: bool = False) -> None:
        """Take the real form of a value that a node made, and quantise it where its type says."""
        value = self._value(id)
        if value.quant is not None:
            scale, zero, attrs = self._quant(value, channels_first)
            (name,) = self.emit("QuantizeLinear", [name, scale, zero], value.first_name, **attrs)
        if not channels_first:
            name = self._with_name(id, name)
        self._stored[id, channels_first] = name

    def bind_nothing(self, id: int) -> None:
        """Name the output of a refused node, so that the nodes after it can be checked."""
        self._stored[id, False] = self._value(id).name

    def _with_name(self, id: int, made: str) -> str:
        """Give the tensor that the last node made the value's name, where others know the name."""
        name = self._named.get(id)
        if name is None:
            return made
        for node in reversed(self.nodes):
            for position, output in enumerate(node.output):
                if output == made:
                    node.output[position] = name
                    return name
        return made

    def _quant(self, value: Value, channels_first: bool) -> tuple[str, str, dict[str, int]]:
        """Return the names of scale and zero point, and the axis."""
        quant = value.quant
        if quant is None:
            raise ConvertError(f"{value.name} is not quantised")
        many = quant.axis is not None
        if value.dtype in _BIAS_DTYPES and any(quant.zero_points):
            raise ConvertError(f"{value.name} is {value.type} with a zero point other than 0")
        scales, zeros = np.array(quant.scales, np.float32), np.array(quant.zero_points)
        zeros = np.broadcast_to(zeros, scales.shape).astype(numpy_dtype(value.dtype))
        if not many:
            scales, zeros = scales.reshape(-1)[0], zeros.reshape(-1)[0]
        names = [self.constant(np.asarray(scales), "scale")]
        names.append(
            "" if value.dtype in _BIAS_DTYPES else self.constant(np.asarray(zeros), "zero")
        )
        if quant.axis is None:
            return names[0], names[1], {}
        axis = quant.axis % len(value.shape)
        if channels_first:
            axis = channels_first_perm(len(value.shape)).index(axis)
        return names[0], names[1], {"axis": axis}


def channels_first_perm(rank: int) -> list[int]:
    """Return the axes of [N,*S,C] in the order [N,C,*S]."""
    return [0, rank - 1, *range(1, rank - 1)]


def channels_last_perm(rank: int) -> list[int]:
    """Return the axes of [N,C,*S] in the order [N,*S,C]."""
    return [0, *range(2, rank), 1]
